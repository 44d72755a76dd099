"""The command that hands a file over."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from duemq.model.errors import Rejected
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.import_command import HEADER, MAX_ROWS, ImportCommand, import_frame, shard_of_content
from duemq.model.messages.plain import MalformedRecord, RecordPosition, command_of
from duemq.model.messages.record import StoredRecord, pack_record
from duemq.model.timing import WINDOW_MS

SHA = "9f" * 32
GOOD = ImportCommand("/shared/a.parquet", SHA, 10, 600_000 * WINDOW_MS, 3)


def test_round_trip() -> None:
    assert ImportCommand.decode(GOOD.encode()) == GOOD
    assert ImportCommand.decode(ImportCommand("/ü", SHA, 1, 0, MAX_ROWS, True).encode()).link is True


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("path", ""),
        ("path", None),
        ("path", "a\nb"),
        ("path", "x" * 4_097),
        ("sha256", "9F" * 32),
        ("sha256", "9f" * 31),
        ("sha256", 5),
        ("size", 0),
        ("size", True),
        ("size", 1 << 49),
        ("rows", 0),
        ("rows", MAX_ROWS + 1),
        ("rows", 1.5),
        ("window", 1),
        ("window", -WINDOW_MS),
        ("window", "0"),
        ("window", 1 << 60),
        ("link", 1),
        ("colour", "red"),
    ],
)
def test_a_wrong_field_is_named(name: str, value: Any) -> None:
    with pytest.raises(Rejected) as refused:
        ImportCommand.decode(orjson.dumps(orjson.loads(GOOD.encode()) | {name: value}))
    assert refused.value.field == name


@pytest.mark.parametrize("name", ["path", "sha256", "size", "window", "rows"])
def test_a_missing_field_is_named(name: str) -> None:
    said = orjson.loads(GOOD.encode())
    del said[name]
    with pytest.raises(Rejected, match=f"{name} is missing"):
        ImportCommand.decode(orjson.dumps(said))


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"null", b"\xff"])
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(Rejected) as refused:
        ImportCommand.decode(raw)
    assert refused.value.code == "bad_json"


def meant(frame: bytes, shard: int, shards: int | None) -> object:
    stored = StoredRecord(7, 1_000, frame)
    return command_of(stored.frame, stored.timestamp, RecordPosition(shard, shards, IdCodec(b"s" * 32)))


def test_a_file_belongs_to_the_shard_of_its_content() -> None:
    shard = shard_of_content(SHA, 4)
    assert meant(import_frame(GOOD), shard, 4) == GOOD
    wrong = meant(import_frame(GOOD), (shard + 1) % 4, 4)
    assert isinstance(wrong, MalformedRecord) and f"belongs to partition {shard}" in wrong.reason


def test_other_headers_do_not_go_with_it() -> None:
    frame = pack_record(None, ((HEADER, GOOD.encode()), ("duemq-topic", b"orders")), b"")
    wrong = meant(frame, 0, None)
    assert isinstance(wrong, MalformedRecord) and "duemq-topic does not go with duemq-import" in wrong.reason
    assert meant(pack_record(None, ((HEADER, GOOD.encode()), ("traceparent", b"00")), b""), 0, None) == GOOD
