"""Two readers of plain clients' records, the server's and the audit's, are held to one table that was written by hand.

The table follows `docs/guides/kafka.md`: what each record means was worked out from its words, not from either reader.
"""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.model.messages.ids import DIRECT, IdCodec
from duemq.model.messages.import_command import ImportCommand
from duemq.model.messages.key import read_key
from duemq.model.messages.message import (
    CANCEL,
    COMMAND_BODY,
    DELIVER_NOW,
    ENVELOPE,
    MOVE,
    REDRIVE,
    Change,
    read_name,
    read_schedule,
)
from duemq.model.messages.plain import ByName, MalformedRecord, RecordPosition, command_of
from duemq.model.messages.record import Header, pack_record
from duemq.model.messages.row import read_row, row_of
from duemq.pipeline.logs.plain_records import RecordMeaning, metadata, read

AT = 1_700_000_000_000  # 2023-11-14T22:13:20Z
SHARD = 3
IDS = IdCodec(b"k" * 32)
ID = IDS.issue_bytes(SHARD, AT + 5, 2**33 + 77, 9)
FILE = b'{"path": "/s/a.parquet", "sha256": "%s", "size": 9, "window": 1830297600000, "rows": 7}' % (b"5d" * 32)
TO = ("duemq-topic", b"orders")
NOW = ("duemq-delay", b"0")
PAST = b"100000000000"
RETURN = ("x-duemq-return", b"1")

Pairs = tuple[Header, ...]
Said = dict[str, Any]


def due(ms: int) -> Said:
    return {"kind": "schedule", "topic": "orders", "due": ms, "expires": 0}


def cancel(**more: Any) -> Said:
    return {"kind": "cancel"} | more


BY_ID: Said = {"first_due": AT + 5, "first_offset": 2**33 + 77, "first_row": 9}
MALFORMED: Said = {"kind": "malformed"}
NEWER: Said = {"disputed": True}
IMPORT: Said = {
    "kind": "import", "path": "/s/a.parquet", "sha256": "5d" * 32, "size": 9, "window": 1830297600000, "rows": 7
}  # fmt: skip

RECORDS: list[tuple[Pairs, Said]] = [
    # Times that count from when the broker appended the record.
    ((TO, ("duemq-delay", b"90s")), due(1_700_000_090_000)),
    ((TO, ("duemq-delay", b"90000")), due(1_700_000_090_000)),
    ((TO, ("duemq-delay", b"2h30m")), due(1_700_009_000_000)),
    ((TO, ("duemq-delay", b"PT90S")), due(1_700_000_090_000)),
    ((TO, ("duemq-delay", b"P1DT2H")), due(1_700_093_600_000)),
    ((TO, ("duemq-delay", b"1.5s")), due(1_700_000_001_500)),
    ((TO, ("duemq-delay", b"1.0001s")), due(1_700_000_001_001)),  # never early
    ((TO, ("duemq-delay", b"0.2ms")), due(1_700_000_000_001)),
    ((TO, ("duemq-delay", b"1y")), due(1_731_557_600_000)),
    ((TO, ("duemq-delay", b"1w1d")), due(1_700_691_200_000)),
    ((TO, ("duemq-delay", b"0")), due(AT)),
    ((TO, ("x-delay", b"5000")), due(1_700_000_005_000)),
    ((TO, ("x-delay", b"1m30s")), due(1_700_000_090_000)),
    ((TO, ("DELAY", b"1")), due(1_700_000_001_000)),
    ((TO, ("DELAY", b"2")), due(1_700_000_005_000)),
    ((TO, ("DELAY", b"4")), due(1_700_000_030_000)),
    ((TO, ("DELAY", b"5")), due(1_700_000_060_000)),
    ((TO, ("DELAY", b"14")), due(1_700_000_600_000)),
    ((TO, ("DELAY", b"15")), due(1_700_001_200_000)),
    ((TO, ("DELAY", b"17")), due(1_700_003_600_000)),
    ((TO, ("DELAY", b"18")), due(1_700_007_200_000)),
    ((TO, ("DELAY", b"999")), due(1_700_007_200_000)),
    ((TO, ("DELAY", b"0")), due(AT)),
    ((TO, ("DELAY", b"-1")), due(AT)),
    # Times of day.
    ((TO, ("duemq-deliver-at", b"2031-01-01T08:00:00+01:00")), due(1_925_017_200_000)),
    ((TO, ("duemq-deliver-at", b"2031-01-01T07:00:00Z")), due(1_925_017_200_000)),
    ((TO, ("duemq-deliver-at", b"2031-01-01t07:00:00.0001z")), due(1_925_017_200_001)),
    ((TO, ("duemq-deliver-at", b"2031-01-01 02:00:00-05:00")), due(1_925_017_200_000)),
    ((TO, ("duemq-deliver-at", b"2024-02-29T00:00:00Z")), due(1_709_164_800_000)),
    ((TO, ("duemq-deliver-at", b"1925017200000")), due(1_925_017_200_000)),
    ((TO, ("duemq-deliver-at", PAST)), due(100_000_000_000)),  # in the past: at once, and shown as given
    # Times that the first versions did not understand.
    ((TO, ("duemq-deliver-at", b"2031-01-01T08:00+0100")), NEWER | due(1_925_017_200_000)),
    ((TO, ("duemq-deliver-at", b"2031-01-01 08:00:00,5 +01")), NEWER | due(1_925_017_200_500)),
    ((TO, ("duemq-deliver-at", b"2031-01-01T07:00:00.0000000001Z")), NEWER | due(1_925_017_200_001)),
    ((TO, ("duemq-deliver-at", b"2031-01-01T08:00:00+01:00[Europe/Berlin]")), NEWER | due(1_925_017_200_000)),
    ((TO, ("duemq-deliver-at", b"2031-01-01T07:00:00Z[Europe/Berlin][u-ca=x]")), NEWER | due(1_925_017_200_000)),
    ((TO, ("duemq-deliver-at", b"2030-12-31T23:59:60.5Z")), NEWER | due(1_924_992_000_500)),
    ((TO, ("duemq-delay", b"90000.2")), NEWER | due(1_700_000_090_001)),
    ((TO, ("duemq-delay", b"9e4")), NEWER | due(1_700_000_090_000)),
    ((TO, ("x-delay", b"-30000")), NEWER | due(AT)),
    ((TO, ("x-delay", b"-5s")), NEWER | due(AT)),
    ((TO, NOW, ("duemq-expires-after", b"90s")), NEWER | due(AT) | {"expires": AT + 90_000}),
    ((("duemq-move", b"order-42"), ("x-delay", b"-7")), NEWER | {"kind": "move", "due": AT, "name": "n:order-42"}),
    ((TO, ("duemq-deliver-at", b"253402300799999")), due(253_402_300_799_999)),
    # What else a schedule says.
    ((TO, NOW, ("duemq-name", b"order-42")), due(AT) | {"name": "n:order-42"}),
    ((TO, NOW, ("duemq-name", b"a" * 128)), due(AT) | {"name": "n:" + "a" * 128}),
    ((TO, NOW, ("duemq-name", "größe/2 x".encode())), due(AT) | {"name": "n:größe/2 x"}),
    ((TO, NOW, ("duemq-name", ("é" * 100).encode())), due(AT) | {"name": "n:" + "é" * 100}),
    ((TO, NOW, ("duemq-name", b"A.z_0:9-")), due(AT) | {"name": "n:A.z_0:9-"}),
    ((TO, NOW, ("duemq-name", b"a"), RETURN), due(AT) | {"name": "r:a", "headers": (RETURN,)}),
    ((TO, NOW, RETURN), due(AT) | {"headers": (RETURN,)}),
    ((TO, NOW, ("duemq-key", b"other")), due(AT) | {"key": b"other"}),
    ((TO, NOW, ("duemq-key", b"")), due(AT) | {"key": b""}),
    ((TO, NOW, ("duemq-labels", "eu, gelb ü".encode())), due(AT) | {"labels": "eu\ngelb ü".encode()}),
    ((TO, NOW, ("duemq-labels", b"")), due(AT) | {"labels": b""}),
    ((TO, NOW, ("duemq-labels", b"a" + b",a" * 15)), due(AT) | {"labels": b"a" + b"\na" * 15}),
    ((TO, NOW, ("duemq-expires-at", b"1700000000000")), due(AT) | {"expires": AT}),
    ((TO, NOW, ("duemq-expires-at", b"2031-01-01T07:00:00Z")), due(AT) | {"expires": 1_925_017_200_000}),
    (
        (("b", b"\xff"), TO, ("a", b"1"), NOW, ("b", b"")),
        due(AT) | {"headers": (("b", b"\xff"), ("a", b"1"), ("b", b""))},
    ),
    ((TO, NOW, ("a", None), ("b", b"")), due(AT) | {"headers": (("a", None), ("b", b""))}),
    ((TO, NOW, ("duemq-key", None)), due(AT) | {"key": b""}),
    ((TO, NOW, ("delay", b"5"), ("X-Delay", b"6")), due(AT) | {"headers": (("delay", b"5"), ("X-Delay", b"6"))}),
    ((("duemq-topic", b"a.b_c-D9"), NOW), due(AT) | {"topic": "a.b_c-D9"}),
    ((("duemq-topic", b"x" * 249), NOW), due(AT) | {"topic": "x" * 249}),
    # Cancels and moves.
    ((("duemq-cancel", ID),), cancel(**BY_ID)),
    ((("duemq-cancel", ID), ("mine", b"1")), cancel(**BY_ID)),
    ((("duemq-cancel", b"order-42"),), cancel(name="n:order-42")),
    ((("duemq-move", ID), ("x-delay", b"7")), {"kind": "move", "due": AT + 7} | BY_ID),
    ((("duemq-move", b"order-42"), ("DELAY", b"3")), {"kind": "move", "due": AT + 10_000, "name": "n:order-42"}),
    (
        (("duemq-move", b"order-42"), ("duemq-deliver-at", b"100000000000")),
        {"kind": "move", "due": AT, "name": "n:order-42"},
    ),
    ((("duemq-deliver-now", ID),), {"kind": "deliver_now"} | BY_ID),
    ((("duemq-deliver-now", b"order-42"), ("mine", b"1")), {"kind": "deliver_now", "name": "n:order-42"}),
    ((("duemq-redrive", ID),), {"kind": "redrive"} | BY_ID),
    ((("duemq-redrive", b"order-42"),), {"kind": "redrive", "name": "n:order-42"}),
    # Files.
    ((("duemq-import", FILE),), IMPORT),
    ((("duemq-import", FILE), ("mine", b"1")), IMPORT),
    ((("duemq-import", FILE.replace(b"}", b', "link": true}')),), IMPORT),
    # Refused: the topic.
    ((), MALFORMED),
    ((NOW,), MALFORMED),
    ((("duemq-topic", b""), NOW), MALFORMED),
    ((("duemq-topic", b"or ders"), NOW), MALFORMED),
    ((("duemq-topic", b"duemq.buffer"), NOW), MALFORMED),
    ((("duemq-topic", b"__offsets"), NOW), MALFORMED),
    ((("duemq-topic", b".."), NOW), MALFORMED),
    ((("duemq-topic", b"x" * 250), NOW), MALFORMED),
    # Refused: the time.
    ((TO,), MALFORMED),
    ((TO, NOW, ("x-delay", b"0")), MALFORMED),
    ((TO, ("duemq-delay", b"-1")), MALFORMED),
    ((TO, ("duemq-delay", b"-90s")), MALFORMED),
    ((TO, ("duemq-delay", b"")), MALFORMED),
    ((TO, ("duemq-delay", b"soon")), MALFORMED),
    ((TO, ("duemq-delay", b"30m2h")), MALFORMED),
    ((TO, ("duemq-delay", b"P1M")), MALFORMED),
    ((TO, ("duemq-delay", b"PT")), MALFORMED),
    ((TO, ("duemq-delay", b"P")), MALFORMED),
    ((TO, ("duemq-delay", b"253402300799999")), MALFORMED),
    ((TO, ("x-delay", b"\x00\x00\x00\x00\x00\x00\x13\x88")), MALFORMED),
    ((TO, ("DELAY", b"1s")), MALFORMED),
    ((TO, ("DELAY", b"")), MALFORMED),
    ((TO, ("duemq-deliver-at", b"2031-01-01T08:00:00")), MALFORMED),
    ((TO, ("duemq-deliver-at", b"2031-01-01")), MALFORMED),
    ((TO, ("duemq-deliver-at", b"2031-02-29T08:00:00Z")), MALFORMED),
    ((TO, ("duemq-deliver-at", b"2031-01-01T24:00:00Z")), MALFORMED),
    ((TO, ("duemq-deliver-at", b"-1")), MALFORMED),
    ((TO, ("duemq-deliver-at", b"253402300800000")), MALFORMED),
    ((TO, ("duemq-deliver-at", b"1969-12-31T23:59:59Z")), MALFORMED),
    # Refused: names, labels, expiry.
    ((TO, NOW, ("duemq-name", b"")), MALFORMED),
    ((TO, NOW, ("duemq-name", b"a\nb")), MALFORMED),
    ((TO, NOW, ("duemq-name", "a\x85".encode())), MALFORMED),
    ((TO, NOW, ("duemq-name", ("é" * 101).encode())), MALFORMED),
    ((TO, NOW, ("duemq-name", b"a" * 129)), MALFORMED),
    ((TO, NOW, ("duemq-name", b"\xff")), MALFORMED),
    ((TO, NOW, ("duemq-labels", b"a,,b")), MALFORMED),
    ((TO, NOW, ("duemq-labels", b"a" + b",a" * 16)), MALFORMED),
    ((TO, NOW, ("duemq-labels", b"a\x01b")), MALFORMED),
    ((TO, NOW, ("duemq-labels", b"a" * 129)), MALFORMED),
    ((TO, ("x-delay", b"9"), ("duemq-expires-at", b"1700000000008")), MALFORMED),
    ((TO, ("x-delay", b"9"), ("duemq-expires-after", b"8")), MALFORMED),
    ((TO, NOW, ("duemq-expires-after", b"8"), ("duemq-expires-at", b"1700000000008")), MALFORMED),
    ((TO, NOW, ("duemq-expires-after", b"-8")), MALFORMED),
    ((TO, ("x-delay", b"--5s")), MALFORMED),
    ((TO, ("x-delay", b"-soon")), MALFORMED),
    ((TO, ("x-delay", b"1e999")), MALFORMED),
    ((TO, ("duemq-deliver-at", b"1.8e12")), MALFORMED),
    ((TO, ("duemq-deliver-at", b"2031-01-01T07:30:60Z")), MALFORMED),
    ((TO, ("duemq-deliver-at", b"2031-01-01T08:00[Europe/Berlin]")), MALFORMED),
    ((TO, ("duemq-deliver-at", b"2031-01-01T07:00Z[UTC][!u-ca=x]")), MALFORMED),
    ((TO, ("duemq-deliver-at", b"2031-01-01T07:00Z[UTC][UTC]")), MALFORMED),
    ((TO, NOW, ("duemq-expires-at", b"never")), MALFORMED),
    # Refused: headers of duemq's that do not belong there.
    ((TO, TO, NOW), MALFORMED),
    ((TO, NOW, ("duemq-id", ID)), MALFORMED),
    ((TO, NOW, ("Duemq-Colour", b"red")), MALFORMED),
    ((TO, NOW, ("duemq-cancel", b"order-42")), MALFORMED),
    ((("duemq-cancel", b"order-42"), NOW), MALFORMED),
    ((("duemq-cancel", b"order\t42"),), MALFORMED),
    ((("duemq-cancel", b""),), MALFORMED),
    ((("duemq-move", b"order-42"),), MALFORMED),
    ((("duemq-move", b"order-42"), NOW, ("x-delay", b"1")), MALFORMED),
    ((("duemq-move", b"order-42"), NOW, ("duemq-cancel", b"order-42")), MALFORMED),
    ((("duemq-deliver-now", b"order-42"), NOW), MALFORMED),
    ((("duemq-deliver-now", b"order-42"), ("duemq-redrive", b"order-42")), MALFORMED),
    ((("duemq-redrive", b"a\x00b"),), MALFORMED),
    ((("duemq-import", FILE), TO), MALFORMED),
    ((("duemq-import", b"{}"),), MALFORMED),
    ((("duemq-import", b"[]"),), MALFORMED),
    ((("duemq-import", b"not JSON"),), MALFORMED),
    ((("duemq-import", FILE.replace(b'"rows": 7', b'"rows": 0')),), MALFORMED),
    ((("duemq-import", FILE.replace(b'"rows": 7', b'"rows": 7.0')),), MALFORMED),
    ((("duemq-import", FILE.replace(b"1830297600000", b"1830297600001")),), MALFORMED),
    ((("duemq-import", FILE.replace(b"5d5d", b"5D5d", 1)),), MALFORMED),
    ((("duemq-import", FILE.replace(b"}", b', "more": 1}')),), MALFORMED),
]


NAMED = (TO, ("duemq-name", b"order-42"), ("a", b"1"), ("b", b""))
REPEATS: list[tuple[str, Pairs, bytes | None, bool]] = [
    # Of a record with the headers above, a delay of 5 s and the key `k`.
    ("the same", (*NAMED, ("duemq-delay", b"5s")), b"k", True),
    ("in another order", (("duemq-delay", b"5s"), *NAMED), b"k", True),
    ("with its key in a header", (*NAMED, ("duemq-delay", b"5s"), ("duemq-key", b"k")), None, True),
    ("with another key there", (*NAMED, ("duemq-delay", b"5s"), ("duemq-key", b"l")), b"k", False),
    ("with another key", (*NAMED, ("duemq-delay", b"5s")), b"l", False),
    ("with an empty key", (*NAMED, ("duemq-delay", b"5s")), b"", False),
    ("without a key", (*NAMED, ("duemq-delay", b"5s")), None, False),
    ("with the same time in other words", (*NAMED, ("duemq-delay", b"5000")), b"k", False),
    ("to another topic", (("duemq-topic", b"x"), *NAMED[1:], ("duemq-delay", b"5s")), b"k", False),
    ("with labels", (*NAMED, ("duemq-delay", b"5s"), ("duemq-labels", b"x")), b"k", False),
    ("with own headers in another order", (*NAMED[:2], NAMED[3], NAMED[2], ("duemq-delay", b"5s")), b"k", False),
    ("with one own header less", (*NAMED[:3], ("duemq-delay", b"5s")), b"k", False),
    ("with null there", (*NAMED[:3], ("b", None), ("duemq-delay", b"5s")), b"k", False),
    ("with another value there", (*NAMED[:3], ("b", b"2"), ("duemq-delay", b"5s")), b"k", False),
    ("as a return", (*NAMED, RETURN, ("duemq-delay", b"5s")), b"k", False),
]


@pytest.mark.parametrize(("what", "pairs", "key", "same"), REPEATS, ids=[one[0] for one in REPEATS])
def test_which_records_are_repeats(what: str, pairs: Pairs, key: bytes | None, same: bool) -> None:
    """Both readers take the same ones for repeats, whenever they come."""
    first = (*NAMED, ("duemq-delay", b"5s"))

    said = [read(of, given, at, SHARD).fingerprint for of, given, at in ((b"k", first, AT), (key, pairs, AT + 9))]
    assert None not in said and (said[0] == said[1]) is same
    told = [by_the_server_fingerprint(given, of, at) for of, given, at in ((b"k", first, AT), (key, pairs, AT + 9))]
    assert None not in told and (told[0] == told[1]) is same


def by_the_server_fingerprint(pairs: Pairs, key: bytes | None, at: int = AT) -> bytes | None:
    """That of a schedule with a name."""
    meant = command_of(pack_record(key, pairs, b"v"), at, RecordPosition(SHARD, None, IDS))
    fields = read_schedule(meant) if isinstance(meant, bytes) else None
    if not isinstance(meant, bytes) or fields is None or not fields.name_bytes:
        return None
    return read_name(meant, fields)[1]


def by_the_server(pairs: Pairs, key: bytes | None, at: int = AT, shards: int | None = None) -> RecordMeaning:
    """What the server makes of a record, in the words of the audit's reader."""
    meant = command_of(pack_record(key, pairs, b"v"), at, RecordPosition(SHARD, shards, IDS))
    kinds = {CANCEL: "cancel", MOVE: "move", DELIVER_NOW: "deliver_now", REDRIVE: "redrive"}
    match meant:
        case MalformedRecord():
            return RecordMeaning("malformed", reason=meant.reason)
        case ImportCommand():
            return RecordMeaning(
                "import", path=meant.path, sha256=meant.sha256, size=meant.size, window=meant.window, rows=meant.rows
            )
        case ByName():
            return RecordMeaning(kinds[meant.kind], due=meant.due or None, name=meant.name.decode())
        case Change():
            return RecordMeaning(kinds[meant.kind], meant.due or None, None, None, None, *read_key(meant.first_key))
    fields = read_schedule(meant)
    assert fields is not None
    row = read_row(row_of(meant, IDS.issue_bytes(SHARD, fields.due, 1), fields))
    name = read_name(meant, fields)[0].decode() if fields.name_bytes else None
    if name is not None and name.startswith("r:"):
        name = name[:-33]  # without the digest of its content
    assert meant[COMMAND_BODY] == 1
    return RecordMeaning(
        "schedule", row.due, row.expires, row.topic, name, key=row.key, labels="\n".join(row.labels).encode(),
        headers=row.headers,
    )  # fmt: skip


def by_the_audit(pairs: Pairs, key: bytes | None, at: int = AT) -> RecordMeaning:
    return read(key, pairs, at, SHARD)


@pytest.mark.parametrize("reader", [by_the_server, by_the_audit])
@pytest.mark.parametrize(("pairs", "said"), RECORDS)
def test_what_a_record_means(reader: Any, pairs: Pairs, said: Said) -> None:
    own_key: dict[str, Any] = {"key": b"of the record"} if said["kind"] == "schedule" else {}
    expected = RecordMeaning(**(own_key | said))
    found = reader(pairs, b"of the record")
    if reader is by_the_server:
        expected = expected._replace(disputed=False)  # it decides
    assert found._replace(reason="", fingerprint=None) == expected
    if own_key:
        assert reader(pairs, None).key == said.get("key")


def test_the_table_has_each_header_and_each_kind() -> None:
    assert len(RECORDS) > 100
    assert {name for pairs, _ in RECORDS for name, _ in pairs if name.startswith(("duemq-", "x-", "DELAY"))} >= {
        "duemq-topic", "duemq-key", "duemq-name", "duemq-labels", "duemq-expires-at", "duemq-deliver-at", "duemq-delay",
        "x-delay", "DELAY", "duemq-cancel", "duemq-move", "duemq-deliver-now", "duemq-redrive", "duemq-import",
    }  # fmt: skip
    assert {said["kind"] for _, said in RECORDS} == {
        "schedule", "cancel", "move", "deliver_now", "redrive", "import", "malformed",
    }  # fmt: skip


@pytest.mark.parametrize("id_", [IDS.issue_bytes(SHARD ^ 1, AT, 3), IDS.issue_bytes(DIRECT, AT, 3), b"B" * 32])
def test_ids_of_other_shards_may_be_names(id_: bytes) -> None:
    """The server knows by its secret that it never was a name, and refuses it; without it nobody can tell."""
    assert by_the_audit((("duemq-cancel", id_),), None) == RecordMeaning("cancel", name=f"n:{id_.decode()}")


def test_keys_and_headers_have_limits() -> None:
    assert read(b"x" * 65_534, (TO, NOW), AT, SHARD).kind == by_the_server((TO, NOW), b"x" * 65_534).kind == "schedule"
    assert read(b"x" * 65_535, (TO, NOW), AT, SHARD).kind == by_the_server((TO, NOW), b"x" * 65_535).kind == "malformed"
    for count, kind in ((65_000, "schedule"), (65_001, "malformed")):
        many = (TO, NOW, *[("h", b"")] * count)
        assert read(None, many, AT, SHARD).kind == by_the_server(many, None).kind == kind


def test_a_record_from_before_1970_counts_from_then() -> None:
    assert read(None, (TO, NOW), -1, SHARD).due == by_the_server((TO, NOW), None, -1).due == 0


EITHER = [b"5", b"1924992000", b"1970-01-01T00:00:00Z", b"2031-01-01T08:00+02:00[Europe/Berlin]"]


@pytest.mark.parametrize("text", EITHER)
def test_the_audit_takes_either_answer_where_versions_or_machines_differ(text: bytes) -> None:
    record = (TO, ("duemq-deliver-at", text))
    meant = by_the_audit(record, None)
    assert (meant.kind, meant.disputed) == ("schedule", True)
    assert by_the_server(record, None).kind == "malformed"


def test_metadata_differ_where_messages_do() -> None:
    headers = (("a", b"1"), ("b", b""))
    others = [
        metadata(None, b"", (), False), metadata(b"", b"", (), False), metadata(b"a", b"", (), False),
        metadata(None, b"a", (), False), metadata(b"a", b"", headers, False), metadata(b"a", b"", headers[::-1], False),
        metadata(b"a", b"", headers[:1], False), metadata(None, b"", (("ab", b""),), False),
        metadata(None, b"", (("a", b"b"),), False), metadata(None, b"", (), True),
        metadata(None, b"", (("a", None), ("b", b"")), False), metadata(None, b"", (("a", b""), ("b", None)), False),
        metadata(None, b"", (("a", None), ("b", b"")), True), metadata(None, b"", (("a", b""), ("b", b"")), False),
    ]  # fmt: skip
    assert len(set(others)) == len(others)
    packed = b"\x00\x01\x00\x01kl\x00\x02\x00\x00\x00\x01\xc3\xa4v"
    assert metadata(b"k", b"l", (("ä", b"v"),), False) == packed


own_headers = st.lists(st.tuples(st.text("aä", max_size=3), st.none() | st.binary(max_size=3)), max_size=4)


@given(own_headers, st.none() | st.binary(max_size=2), st.none() | st.binary(max_size=2))
def test_metadata_are_those_of_the_envelope(own: list[Header], key: bytes | None, value: bytes | None) -> None:
    """Which Spark hashes as it stands."""
    pairs = (TO, NOW, *own, ("duemq-name", b"order-42"))
    frame = command_of(pack_record(key, pairs, value), AT, RecordPosition(SHARD, None, IDS))
    assert isinstance(frame, bytes)
    fields = read_schedule(frame)
    assert fields is not None
    start = COMMAND_BODY + ENVELOPE.size + fields.topic_bytes
    carried = frame[start : start + len(key or b"") + fields.label_bytes + fields.header_bytes]
    of_audit = read(key, pairs, AT, SHARD, value is None)
    assert of_audit.columns()["metadata"] == pack(">HH", fields.key_bytes, fields.label_bytes) + carried
    assert of_audit.fingerprint != read(key, pairs, AT, SHARD, value is not None).fingerprint


ours = st.sampled_from(sorted({name for pairs, _ in RECORDS for name, _ in pairs}))
values = st.sampled_from(
    sorted({value for pairs, _ in RECORDS for _, value in pairs if value is not None and len(value) < 200})
)
times = st.from_regex(r"[0-9P.]{0,3}[0-9]{1,3}[ywdhmsTHMSWD]{0,2}[0-9]{0,2}(\.[0-9])?[hms]{0,2}", fullmatch=True)
records = st.lists(
    st.tuples(
        ours | st.text(max_size=9, alphabet="aäDd-"),
        values | times.map(str.encode) | st.none() | st.binary(max_size=40),
    ),
    max_size=4,
)


@given(records.map(tuple), st.none() | st.binary(max_size=3), st.integers(-1, 253_402_300_799_999))
def test_both_read_alike(pairs: Pairs, key: bytes | None, at: int) -> None:
    server, own = by_the_server(pairs, key, at), by_the_audit(pairs, key, at)
    if own.name is not None and len(own.name) == 34 and server.kind == "malformed":
        return  # an id that was forged, or of another shard: see above
    if own.first_due is not None and own.first_due != server.first_due:
        return
    if own.disputed and server.kind == "malformed":
        return
    plain = own._replace(reason="", fingerprint=None, due=own.due or None, disputed=False)
    assert plain == server._replace(reason="", due=server.due or None)


@given(*([st.tuples(records.map(tuple), st.none() | st.binary(max_size=1))] * 2))
def test_both_take_the_same_records_for_repeats(
    one: tuple[Pairs, bytes | None], two: tuple[Pairs, bytes | None]
) -> None:
    own, server = [], []
    for pairs, key in (one, two):
        named = (*[pair for pair in pairs if pair[0] != "duemq-name"], ("duemq-name", b"order-42"))
        for ready in (named, (TO, NOW, ("duemq-name", b"order-42"))):
            own.append(read(key, ready, AT, SHARD).fingerprint)
            server.append(by_the_server_fingerprint(ready, key))
    pairwise = [(a, b) for a in range(4) for b in range(a)]
    assert [a is None for a in own] == [b is None for b in server]
    assert [own[a] == own[b] for a, b in pairwise] == [server[a] == server[b] for a, b in pairwise]
