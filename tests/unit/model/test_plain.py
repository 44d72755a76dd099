"""Plain records: what their headers say, and that nothing a client can send is more than refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.delay.core.command_batch import understand
from duemq.model.log.ledger import Answer
from duemq.model.messages.ids import DIRECT, IdCodec
from duemq.model.messages.message import (
    CANCEL,
    DELIVER_NOW,
    MAX_HEADERS,
    MOVE,
    REDRIVE,
    Change,
    read_name,
    read_schedule,
)
from duemq.model.messages.names import of_client, of_return, shard_of_name
from duemq.model.messages.plain import (
    ByName,
    MalformedRecord,
    RecordPosition,
    change_by_name,
    command_of,
    dead_letter,
    read_record,
)
from duemq.model.messages.record import HEAD, Header, Record, StoredRecord, pack_record, unpack_record
from duemq.model.messages.row import Row, read_row, row_of
from duemq.model.timing import LAST_MS
from tests.support.python_calls import python_calls

IDS = IdCodec(b"k" * 32)
AT = 1_700_000_000_000
SHARDS = 4
NAME_SHARD = shard_of_name(of_client("order-42"), SHARDS)
PLACE = RecordPosition(NAME_SHARD, SHARDS, IDS)
ID = IDS.issue(NAME_SHARD, AT + 5, 77)
TARGET = ("duemq-topic", b"orders")

Pairs = tuple[tuple[str, bytes], ...]


def meaning(*pairs: Header, key: bytes | None = None, value: bytes | None = b"v") -> object:
    return command_of(pack_record(key, pairs, value), AT, PLACE)


def scheduled(*pairs: Header, key: bytes | None = None, value: bytes | None = b"v") -> Row:
    frame = meaning(*pairs, key=key, value=value)
    assert isinstance(frame, bytes), frame
    fields = read_schedule(frame)
    assert fields is not None
    return read_row(row_of(frame, IDS.issue_bytes(NAME_SHARD, fields.due, 1), fields))


def refusal(*pairs: tuple[str, bytes]) -> str:
    found = meaning(*pairs)
    assert isinstance(found, MalformedRecord), found
    return found.reason


@pytest.mark.parametrize(
    ("name", "value", "due"),
    [
        ("duemq-deliver-at", b"1700000000999", AT + 999),
        ("duemq-deliver-at", b"100000000000", 100_000_000_000),
        ("duemq-deliver-at", b"2031-01-01T08:00:00.5+01:00", 1_925_017_200_500),
        ("duemq-delay", b"90000", AT + 90_000),
        ("duemq-delay", b"1m30s", AT + 90_000),
        ("x-delay", b"0", AT),
        ("x-delay", b"200.2", AT + 201),
        ("x-delay", b"-30000", AT),  # RabbitMQ's plug-in delivers it at once
        ("duemq-deliver-at", b"2031-01-01T08:00+0100", 1_925_017_200_000),
        ("duemq-deliver-at", b"2031-01-01T08:00:00+01:00[Europe/Berlin]", 1_925_017_200_000),
        ("DELAY", b"1", AT + 1_000),
        ("DELAY", b"18", AT + 7_200_000),
        ("DELAY", b"19", AT + 7_200_000),
        ("DELAY", b"0", AT),
        ("DELAY", b"-3", AT),
    ],
)
def test_when(name: str, value: bytes, due: int) -> None:
    assert scheduled(TARGET, (name, value)).due == due
    assert meaning(("duemq-move", ID.encode()), (name, value)) == Change(MOVE, IDS.read(ID).key, max(due, AT))  # type: ignore[union-attr]


def test_a_schedule_carries_what_the_client_said() -> None:
    row = scheduled(
        ("trace", b"1"), TARGET, ("duemq-delay", b"5"), ("duemq-labels", "eu, gelb ü".encode()), ("trace", b"\xff"),
        ("duemq-expires-at", b"1700000000005"), ("duemq-name", b"order-42"), key=b"\x00\xff",
    )  # fmt: skip
    assert (row.topic, row.payload, row.key, row.headers) == (
        "orders", b"v", b"\x00\xff", (("trace", b"1"), ("trace", b"\xff")),
    )  # fmt: skip
    assert (row.labels, row.expires, row.name) == (("eu", "gelb ü"), AT + 5, b"n:order-42")
    assert scheduled(TARGET, ("x-delay", b"5"), ("duemq-key", b"own"), key=b"of the record").key == b"own"


def test_null_stays_null() -> None:
    row = scheduled(TARGET, ("duemq-delay", b"5"), ("a", None), ("b", b""), ("c", None), value=None)
    assert (row.payload, row.headers) == (None, (("a", None), ("b", b""), ("c", None)))
    assert scheduled(TARGET, ("duemq-delay", b"5"), value=b"").payload == b""
    many = (("n", None), *(("h", b"") for _ in range(MAX_HEADERS - 1)))
    assert len(scheduled(TARGET, ("duemq-delay", b"5"), *many).headers) == MAX_HEADERS  # none is null: no room


def test_null_in_a_header_of_duemq_is_empty_as_it_was() -> None:
    """Whatever it means, it has to mean the same to a replica of version 0.1.0."""
    assert scheduled(TARGET, ("duemq-delay", b"5"), ("duemq-key", None), key=b"k").key == b""
    assert meaning(TARGET, ("duemq-delay", None)) == meaning(TARGET, ("duemq-delay", b""))


def test_changes_by_id_and_by_name() -> None:
    first_key = IDS.read(ID).key  # type: ignore[union-attr]
    assert meaning(("duemq-cancel", ID.encode()), ("trace", b"1")) == Change(CANCEL, first_key, 0)
    assert meaning(("duemq-cancel", b"order-42")) == ByName(CANCEL, of_client("order-42"), 0)
    assert meaning(("duemq-move", b"order-42"), ("x-delay", b"7")) == ByName(MOVE, of_client("order-42"), AT + 7)
    assert meaning(("duemq-deliver-now", ID.encode())) == Change(DELIVER_NOW, first_key, 0)
    assert meaning(("duemq-redrive", b"order-42")) == ByName(REDRIVE, of_client("order-42"), 0)


def test_a_return_has_a_name_that_no_client_can_have_whatever_its_headers_tell_of_the_error() -> None:
    def named(value: bytes, *more: tuple[str, bytes]) -> tuple[bytes, bytes, Row]:
        pairs = (TARGET, ("duemq-delay", b"5s"), ("duemq-name", b"order-42"), *more)
        frame = command_of(pack_record(b"k", pairs, value), AT, PLACE)
        assert isinstance(frame, bytes)
        fields = read_schedule(frame)
        assert fields is not None
        return *read_name(frame, fields), read_row(row_of(frame, ID.encode(), fields))

    marked = ("x-duemq-return", b"1")
    first, again = named(b"v", marked, ("x-duemq-error", b"a")), named(b"v", ("x-duemq-error", b"b"), marked)
    assert first[:2] == again[:2] == of_return("order-42", b"orders", b"k", b"v")
    assert first[2].headers == (marked, ("x-duemq-error", b"a")), "as an older version delivers it"
    assert named(b"v")[0] == of_client("order-42") and named(b"w", marked)[0] not in (first[0], of_client("order-42"))
    unnamed = command_of(pack_record(None, (TARGET, ("duemq-delay", b"5s"), marked), b""), AT, PLACE)
    assert isinstance(unnamed, bytes), "what an older master has accepted"


@pytest.mark.parametrize("kind", [CANCEL, MOVE, DELIVER_NOW, REDRIVE])
def test_what_the_proxy_writes_of_a_change_by_name_is_read_as_that(kind: int) -> None:
    due = AT + 9 if kind == MOVE else 0
    frame = change_by_name(kind, "order-42", AT + 9)
    assert command_of(frame, AT, RecordPosition(0, None, IDS)) == ByName(kind, of_client("order-42"), due)
    frame = change_by_name(kind, "order-42", AT + 9, "user:a@b.example")
    assert command_of(frame, AT, RecordPosition(0, None, IDS)) == ByName(
        kind, of_client("order-42"), due, "user:a@b.example"
    )


TEXTS = st.one_of(
    st.sampled_from([b"order-42", b"order/7", "größe".encode(), ID.encode(), ID[::-1].encode(), b"", b"a\n", b"\xff"]),
    st.binary(max_size=40),
)
MS = st.one_of(
    st.integers(0, LAST_MS + 1).map(lambda ms: b"%d" % ms), st.sampled_from([b"0000000000005", b"1e13", b""])
)


@given(
    st.sampled_from(
        ["duemq-cancel", "duemq-move", "duemq-deliver-now", "duemq-redrive", "duemq-topic", "duemq-import"]
    ),
    TEXTS,
    st.lists(st.tuples(st.sampled_from(["duemq-deliver-at", "duemq-delay", "x"]), MS), max_size=2),
    st.one_of(st.none(), st.just(b"k")),
    st.one_of(st.none(), st.just(b"key:shop"), st.binary(max_size=9)),
    st.booleans(),
)
def test_a_change_by_name_means_the_same_whether_it_is_read_by_position_or_by_its_headers(
    header: str, text: bytes, more: list[tuple[str, bytes]], key: bytes | None, value: bytes | None, judged: bool
) -> None:
    """All replicas must agree with one of an older version, which reads headers. One that says nothing makes all do."""
    for place in (PLACE, RecordPosition(1, None, IDS)):
        by_position, by_headers = (
            command_of(pack_record(key, [(header, text), *more, *silent], value), AT, place, judged)
            for silent in ((), [("trace", b"1")])
        )
        if isinstance(by_position, bytes):  # a message, which has the silent header
            assert isinstance(by_headers, bytes)
        else:
            assert by_position == by_headers


@pytest.mark.parametrize("kind", [CANCEL, MOVE, DELIVER_NOW, REDRIVE])
def test_a_change_by_name_is_read_in_few_calls(kind: int) -> None:
    """By its headers it takes 24 to 29."""
    commands = [StoredRecord(7, AT, change_by_name(kind, "order-42", AT + 9, "key:shop"))]
    assert python_calls(lambda: understand(commands, PLACE, None)) <= 18


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ((), "missing_topic: duemq-topic is required"),
        ((("duemq-topic", b"a b"), ("x-delay", b"1")), "bad_topic: duemq-topic must be"),
        ((("duemq-topic", b"__x"), ("x-delay", b"1")), "bad_topic: duemq-topic must be"),
        ((("duemq-topic", b"duemq.ledger"), ("x-delay", b"1")), "bad_topic: duemq-topic must be"),
        ((("duemq-topic", b"x" * 250), ("x-delay", b"1")), "bad_topic: duemq-topic must be"),
        ((TARGET,), "bad_time: exactly one of duemq-deliver-at, duemq-delay, x-delay, DELAY says when, not none"),
        ((TARGET, ("x-delay", b"1"), ("DELAY", b"1")), "both_times: exactly one of"),
        ((TARGET, ("x-delay", b"")), "bad_time: x-delay is not a duration"),
        ((TARGET, ("x-delay", b"\x00\x00\x00\x00\x00\x00\x00\x05")), "bad_time: x-delay is not a duration"),
        ((TARGET, ("x-delay", b"\xff")), "bad_header: the value of x-delay is not text: '\\\\xff'"),
        ((TARGET, ("duemq-delay", b"-1")), "negative_delay: duemq-delay"),
        ((TARGET, ("duemq-delay", b"%d" % LAST_MS)), "delay_too_long: duemq-delay"),
        (
            (TARGET, ("duemq-deliver-at", b"1924992000")),
            "bad_time: duemq-deliver-at: 1924992000 looks like seconds; ms are 1924992000000",
        ),
        ((TARGET, ("duemq-deliver-at", b"1970-01-01T00:00:00Z")), "bad_time: duemq-deliver-at"),
        ((TARGET, ("duemq-deliver-at", b"2031-01-01T08:00[Europe/Berlin]")), "naive_time: duemq-deliver-at"),
        ((TARGET, ("duemq-deliver-at", b"2031-01-01T08:00+02:00[Europe/Berlin]")), "bad_time: duemq-deliver-at has an"),
        ((TARGET, ("x-delay", b"1"), ("duemq-expires-at", b"1924992000")), "bad_time: duemq-expires-at: 1924992000"),
        ((TARGET, ("x-delay", b"9"), ("duemq-expires-after", b"8")), "bad_time: duemq-expires-after is before"),
        (
            (TARGET, ("x-delay", b"9"), ("duemq-expires-after", b"8"), ("duemq-expires-at", b"8")),
            "both_times: duemq-expires-at and duemq-expires-after",
        ),
        ((TARGET, ("duemq-deliver-at", b"2031-01-01T08:00:00")), "naive_time: duemq-deliver-at has no zone"),
        ((TARGET, ("DELAY", b"1s")), "bad_level: DELAY must be a whole number"),
        ((TARGET, ("DELAY", b"9" * 5_000)), "bad_level: DELAY must be a whole number"),
        ((TARGET, ("x-delay", b"9"), ("duemq-expires-at", b"%d" % (AT + 8))), "bad_time: duemq-expires-at is before"),
        ((TARGET, ("x-delay", b"1"), ("duemq-labels", b"a,,b")), "bad_field: duemq-labels: a label"),
        ((TARGET, ("x-delay", b"1"), ("duemq-labels", b"a" + b",a" * 16)), "bad_field: duemq-labels are at most 16"),
        ((TARGET, ("x-delay", b"1"), ("duemq-name", b"a\nb")), "bad_field: duemq-name"),
        ((TARGET, ("x-delay", b"1"), ("duemq-name", b"order-44")), "wrong_partition: duemq-name: the name order-44"),
        ((TARGET, ("x-delay", b"1"), ("x-delay", b"1")), "bad_header: x-delay is given twice"),
        ((TARGET, ("x-delay", b"1"), ("Duemq-Id", b"1")), "unknown_field: 'Duemq-Id' is not a header here"),
        ((("duemq-cancel", b""),), "bad_field: duemq-cancel: no id of this cluster"),
        ((("duemq-cancel", b"order-42"), TARGET), "bad_header: duemq-topic does not go with duemq-cancel"),
        ((("duemq-cancel", b"order-42"), ("duemq-move", b"order-42")), "bad_header: duemq-move does not go with"),
        ((("duemq-move", b"order-42"),), "bad_time: exactly one of"),
        ((("duemq-cancel", IDS.issue(NAME_SHARD ^ 1, AT, 3).encode()),), "wrong_partition: duemq-cancel"),
        ((("duemq-cancel", IDS.issue(DIRECT, AT, 3).encode()),), "already_delivered: duemq-cancel"),
        ((("duemq-cancel", b"B" * 32),), "wrong_partition: duemq-cancel: no id of this cluster; the name BBBB"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_the_header_and_the_rule(pairs: Pairs, reason: str) -> None:
    assert refusal(*pairs).startswith(reason)


def test_what_a_master_of_an_older_version_accepted_is_read_as_it_was() -> None:
    """It did not ask how early a time is, and other machines may know other zones."""
    for value, due in ((b"1924992000", 1_924_992_000), (b"1970-01-01T00:00:01Z", 1000)):
        old = pack_record(None, (TARGET, ("duemq-deliver-at", value)), b"v")
        batch = understand([StoredRecord(7, AT, old)], PLACE, {})
        assert not batch.others and batch.schedules[0] is not None and batch.schedules[0].due == due
        assert isinstance(understand([StoredRecord(7, AT, old)], PLACE, None).others[7], MalformedRecord)
        refused = understand([StoredRecord(7, AT, old)], PLACE, {7: Answer.MALFORMED})
        assert refused.others == {7: MalformedRecord("the ledger says so")}
    foreign = pack_record(None, (TARGET, ("duemq-deliver-at", b"2031-01-01T08:00+01:00[Mars/Olympus]")), b"v")
    assert not understand([StoredRecord(7, AT, foreign)], PLACE, {}).others


def test_an_expiry_counts_from_when_the_log_has_the_record() -> None:
    assert scheduled(TARGET, ("x-delay", b"5"), ("duemq-expires-after", b"1h")).expires == AT + 3_600_000


def test_the_documentation_tells_of_every_header() -> None:
    known = refusal(("duemq-colour", b"red")).rpartition("known are ")[2].split(", ")
    text = (Path(__file__).parents[3] / "docs" / "guides" / "kafka.md").read_text()
    assert len(known) == 15 and all(f"`{name}`" in text for name in known)


def test_a_repeat_is_the_same_content_whenever_it_comes() -> None:
    def prints(*pairs: Header, at: int = AT, key: bytes | None = None, value: bytes | None = b"v") -> bytes:
        frame = command_of(pack_record(key, (TARGET, ("duemq-name", b"order-42"), *pairs), value), at, PLACE)
        assert isinstance(frame, bytes)
        return frame[frame.index(b"n:order-42") + 10 :][:16]

    delay, trace = ("x-delay", b"5"), ("trace", b"1")
    first = prints(delay, trace)
    assert first == prints(trace, delay, at=AT + 60_000)
    others = (prints(delay), prints(delay, trace, key=b""), prints(delay, trace, value=b"w"), prints(("DELAY", b"5")))
    empty = (prints(delay, ("h", b"")), prints(delay, ("h", None)), prints(delay, value=b""), prints(delay, value=None))
    assert len({first, *others, *empty}) == 9


ours = st.sampled_from(
    ["duemq-topic", "duemq-delay", "x-delay", "DELAY", "duemq-deliver-at", "duemq-key", "duemq-name", "duemq-labels",
     "duemq-expires-at", "duemq-expires-after", "duemq-cancel", "duemq-move", "duemq-deliver-now", "duemq-redrive",
     "duemq-command"]
)  # fmt: skip
values = st.sampled_from([b"orders", b"1", b"-1", b"99999999999999", b"order-42", ID.encode(), b"a,b", b"2031-01-01"])
records = st.builds(
    pack_record,
    st.none() | st.binary(max_size=9),
    st.lists(
        st.tuples(ours | st.text(max_size=9, alphabet="aä\x00"), values | st.none() | st.binary(max_size=70)),
        max_size=5,
    ),
    st.none() | st.binary(max_size=20),
)


@given(records | st.binary(max_size=120), st.integers(-1, LAST_MS), st.integers(0, 120), st.binary(max_size=4))
def test_no_bytes_do_harm(frame: bytes, timestamp: int, at: int, damage: bytes) -> None:
    frame = frame[:at] + damage + frame[at + len(damage) :]
    meant = command_of(frame, timestamp, PLACE)
    if isinstance(meant, bytes):
        fields = read_schedule(meant)
        assert fields is not None
        read_row(row_of(meant, IDS.issue_bytes(1, fields.due, 1), fields))
    elif isinstance(meant, MalformedRecord):
        letter = unpack_record(dead_letter(frame, 3, 7, meant.reason))
        assert letter.header("duemq-error") == meant.reason.encode()


def test_a_dead_letter_is_the_record_with_the_reason_in_front() -> None:
    record = Record(b"k", (TARGET, ("duemq-error", b"mine"), ("ä", b"\xff")), b"value")
    letter = unpack_record(dead_letter(pack_record(*record), 3, 7, "bad_topic: why"))
    told = (
        ("duemq-reason", b"malformed"), ("duemq-error", b"bad_topic: why"), ("duemq-partition", b"3"),
        ("duemq-offset", b"7"),
    )  # fmt: skip
    assert letter == record._replace(headers=told + record.headers)


def test_a_frame_that_is_none_or_full_of_headers_still_makes_a_dead_letter() -> None:
    broken = HEAD.pack(-1, 1, 9) + b"abc"
    assert read_record(broken) is None
    assert unpack_record(dead_letter(broken, 3, 7, "x")).value == broken
    full = HEAD.pack(-1, 0xFFFF, 6 * 0xFFFF) + bytes(6 * 0xFFFF) + b"value"
    letter = unpack_record(dead_letter(full, 3, 7, "x"))
    assert (len(letter.headers), letter.value) == (MAX_HEADERS + 4, b"value")
    many = pack_record(None, (TARGET, ("x-delay", b"1"), *[("h", b"")] * (MAX_HEADERS + 1)), b"")
    found = command_of(many, AT, PLACE)
    assert isinstance(found, MalformedRecord) and "65001 headers are given" in found.reason
