"""Records that Python has to read, in Arrow batches: the functions that `logs.py` gives to `mapInArrow`.

These are entries of the ledger and records of plain clients. Spark reads all others itself (`envelopes.py`).
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from duemq.model.adoption import Adopt
from duemq.model.errors import CorruptStore
from duemq.model.ids import ID_CHARS, IdCodec, MessageId, peek
from duemq.model.key import read_key
from duemq.model.ledger import Barrier, read_ledger
from duemq.model.message import (
    CANCEL,
    COMMAND_HEADER,
    DELIVER_NOW,
    ENVELOPE,
    MOVE,
    NO_KEY,
    REDRIVE,
    SCHEDULE,
    Change,
    read_name,
    read_schedule,
)
from duemq.model.plain import ByName, Malformed, Place, command_of
from duemq.model.record import pack_record
from duemq.model.timing import LAST_MS

Batches = Iterable[pa.RecordBatch]

_LONG_MAX: Final = 2**63 - 1
_KINDS: Final = {
    SCHEDULE: "schedule", CANCEL: "cancel", MOVE: "move", DELIVER_NOW: "deliver_now", REDRIVE: "redrive",
}  # fmt: skip

COMMANDS: Final = (
    "shard int, offset bigint, at bigint, kind string, plain boolean, due bigint, topic string, name string, "
    "expires bigint, first_due bigint, first_offset bigint, first_row bigint, path string, sha256 string, size bigint, "
    "window bigint, rows bigint, content bigint, metadata bigint"
)
PLAIN: Final = COMMANDS.replace("metadata bigint", "metadata binary")
ENTRIES: Final = (
    "shard int, ledger_offset bigint, written bigint, n bigint, applied bigint, cursor_due bigint, "
    "cursor_offset bigint, cursor_row bigint, at bigint, pending bigint, checksum string, accepted bigint, "
    "delivered bigint, cancelled bigint, dead bigint, horizon bigint, "
    "answers array<struct<offset: bigint, answer: int>>, "
    "deferred array<struct<due: bigint, offset: bigint, row: bigint, to_due: bigint, to_offset: bigint, "
    "to_row: bigint, attempt: int, reason: string>>, "
    "adopted array<struct<offset: bigint, rows: bigint, reason: string>>, problem string"
)
_ID: Final = "shard int, first_due bigint, first_offset bigint, first_row bigint, mac bigint"
DELIVERIES: Final = (
    "topic string, partition int, offset bigint, at bigint, by_broker boolean, due bigint, attempt int, "
    f"content bigint, id string, {_ID}, metadata bigint"
)
DEAD_LETTERS: Final = (
    "topic string, partition int, offset bigint, at bigint, by_broker boolean, due bigint, attempt int, "
    f"content bigint, id string, reason string, target string, command bigint, {_ID}, metadata bigint"
)


# --- records of plain clients -----------------------------------------------------------------------------------------


def plain(batches: Batches) -> Iterator[pa.RecordBatch]:
    """What plain Kafka clients say in headers, record by record. `shard`, `offset`, `at`, `said` (key and headers as
    JSON, bytes as base64), `content`."""
    schema = pa.schema([(name, _ARROW[kind]) for name, kind in (field.split() for field in PLAIN.split(", "))])
    codecs: dict[int, _Unchecked] = {}
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            codec = codecs.setdefault(row["shard"], _Unchecked(row["shard"]))
            record = orjson.loads(row.pop("said"))
            headers = [(one["key"], b64decode(one.get("value", ""))) for one in record.get("headers", ())]
            frame = pack_record(b64decode(record["key"]) if "key" in record else None, headers, b"")
            rows.append(row | {"plain": True} | _plain(frame, row["at"], Place(row["shard"], None, codec)))
        yield pa.RecordBatch.from_pylist(rows, schema)


_ARROW: Final = {
    "int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "boolean": pa.bool_(), "binary": pa.binary(),
}  # fmt: skip


class _Unchecked(IdCodec):
    """Reads ids without the cluster's secret. Whether one was genuine is told by the answer its command got."""

    def __init__(self, shard: int) -> None:
        super().__init__(bytes(16))
        self._shard = shard

    def read(self, text: str) -> MessageId | None:
        if len(text) != ID_CHARS or not text.isascii():
            return None
        try:
            found = peek(text)
        except ValueError:
            return None
        return found if found.shard == self._shard and found.due <= LAST_MS else None


def _plain(frame: bytes, at: int, place: Place) -> dict[str, Any]:
    meant = command_of(frame, at, place)
    match meant:
        case Malformed():
            return {"kind": "malformed"}
        case Adopt():
            return {
                "kind": "adopt", "path": meant.path, "sha256": meant.sha256, "size": meant.size,
                "window": meant.window, "rows": meant.rows,
            }  # fmt: skip
        case ByName():
            due = meant.due if meant.kind == MOVE else None
            return {"kind": _KINDS[meant.kind], "name": meant.name.decode(), "due": due}
        case Change():
            first_due, first_offset, first_row = read_key(meant.first_key)
            due = meant.due if meant.kind == MOVE else None
            return {
                "kind": _KINDS[meant.kind], "due": due, "first_due": first_due, "first_offset": first_offset,
                "first_row": first_row,
            }  # fmt: skip
    fields = read_schedule(meant)
    assert fields is not None
    _, due, expires, topic_bytes, key_bytes, label_bytes, _, _, header_bytes = fields
    start = meant.index(COMMAND_HEADER) + len(COMMAND_HEADER) + ENVELOPE.size
    name = read_name(meant, fields)[0].decode() if fields[6] else None
    topic = meant[start : start + topic_bytes].decode()
    middle = start + topic_bytes
    end = middle + (0 if key_bytes == NO_KEY else key_bytes) + label_bytes + header_bytes
    metadata = key_bytes.to_bytes(2, "big") + label_bytes.to_bytes(2, "big") + meant[middle:end]
    return {"kind": "schedule", "due": due, "expires": expires, "topic": topic, "name": name, "metadata": metadata}


# --- the ledger -------------------------------------------------------------------------------------------------------

_ANSWER = pa.struct([("offset", pa.int64()), ("answer", pa.int32())])
_DEFERRED = pa.struct([
    ("due", pa.int64()), ("offset", pa.int64()), ("row", pa.int64()), ("to_due", pa.int64()),
    ("to_offset", pa.int64()), ("to_row", pa.int64()), ("attempt", pa.int32()), ("reason", pa.string()),
])  # fmt: skip
_ADOPTED = pa.struct([("offset", pa.int64()), ("rows", pa.int64()), ("reason", pa.string())])
_ENTRY_SCHEMA = pa.schema([
    ("shard", pa.int32()), ("ledger_offset", pa.int64()), ("written", pa.int64()),
    *((name, pa.int64()) for name in (
        "n", "applied", "cursor_due", "cursor_offset", "cursor_row", "at", "pending",
    )),
    ("checksum", pa.string()),
    *((name, pa.int64()) for name in ("accepted", "delivered", "cancelled", "dead", "horizon")),
    ("answers", pa.list_(_ANSWER)), ("deferred", pa.list_(_DEFERRED)), ("adopted", pa.list_(_ADOPTED)),
    ("problem", pa.string()),
])  # fmt: skip


def entries(batches: Batches) -> Iterator[pa.RecordBatch]:
    """`shard`, `ledger_offset`, `written`, `value`."""
    for batch in batches:
        rows = [entry for row in batch.to_pylist() if (entry := _entry(row)) is not None]
        answers = [row.pop("answers", None) for row in rows]
        table = pa.RecordBatch.from_pylist([row | {"answers": None} for row in rows], _ENTRY_SCHEMA)
        at = _ENTRY_SCHEMA.get_field_index("answers")
        yield table.set_column(at, "answers", _answers(answers))


def _answers(answers: list[Any]) -> pa.Array:
    """Answers of many entries, without an object for each."""
    sizes = np.fromiter((len(one or ()) for one in answers), np.int32, len(answers))
    total = int(sizes.sum())
    offsets = np.fromiter((offset for one in answers for offset in one or ()), np.int64, total)
    codes = np.fromiter((code for one in answers for code in (one or {}).values()), np.int32, total)
    values = pa.StructArray.from_arrays([pa.array(offsets), pa.array(codes)], fields=list(_ANSWER))
    ends = np.concatenate((np.zeros(1, np.int32), np.cumsum(sizes, dtype=np.int32)))
    return pa.ListArray.from_arrays(pa.array(ends), values)


def _entry(row: dict[str, Any]) -> dict[str, Any] | None:
    """None for a barrier, which tells nothing of messages."""
    value = row.pop("value")
    try:
        entry = read_ledger(value or b"")
    except CorruptStore as error:
        return row | {"problem": str(error)}
    if isinstance(entry, Barrier):
        return None
    cursor_due, cursor_offset, cursor_row = read_key(entry.cursor)
    deferred = []
    for one in entry.deferred:
        key = dict(zip(("due", "offset", "row"), read_key(one.key), strict=True))
        to = dict(zip(("to_due", "to_offset", "to_row"), read_key(one.to) if one.to else (None,) * 3, strict=True))
        deferred.append(key | to | {"attempt": one.attempt, "reason": one.reason})
    adopted = [{"offset": one.offset, "rows": one.rows, "reason": one.reason} for one in entry.adopted]
    accepted, delivered, cancelled, dead = entry.fates
    return row | {
        "n": entry.number, "applied": entry.applied, "cursor_due": min(cursor_due, _LONG_MAX),
        "cursor_offset": min(cursor_offset, _LONG_MAX), "cursor_row": cursor_row, "at": entry.at,
        "pending": entry.pending, "checksum": f"{entry.checksum:016x}", "accepted": accepted, "delivered": delivered,
        "cancelled": cancelled, "dead": dead, "horizon": entry.horizon, "answers": entry.answers,
        "deferred": deferred, "adopted": adopted,
    }  # fmt: skip
