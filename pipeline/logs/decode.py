"""Reads ledger entries, and records of plain clients, in Arrow batches, for `mapInArrow` in `logs.py`.

Spark's own expressions read all other records (`envelopes.py`).
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from murmurhash2 import murmurhash2

from duemq.model.errors import CorruptStore
from duemq.model.log.ledger import Barrier, read_ledger
from duemq.model.messages.key import read_key
from duemq.pipeline.logs import ledger_columns, plain_records

Batches = Iterable[pa.RecordBatch]

_LONG_MAX: Final = 2**63 - 1
_KAFKA_SEED: Final = 0x9747B28C  # org.apache.kafka.common.utils.Utils.murmur2

COMMANDS: Final = (
    "shard int, offset bigint, at bigint, kind string, plain boolean, due bigint, topic string, name string, "
    "expires bigint, first_due bigint, first_offset bigint, first_row bigint, path string, sha256 string, size bigint, "
    "window bigint, rows bigint, disputed boolean, tag string, content bigint, metadata bigint, fingerprint bigint"
)
PLAIN: Final = COMMANDS.replace("metadata bigint, fingerprint bigint", "metadata binary, fingerprint binary")
ENTRIES: Final = (
    "shard int, ledger_offset bigint, written bigint, n bigint, applied bigint, cursor_due bigint, "
    "cursor_offset bigint, cursor_row bigint, at bigint, pending bigint, checksum string, accepted bigint, "
    "delivered bigint, cancelled bigint, dead bigint, horizon bigint, end_horizon bigint, "
    "answers array<struct<offset: bigint, answer: int>>, "
    "deferred array<struct<due: bigint, offset: bigint, row: bigint, to_due: bigint, to_offset: bigint, "
    "to_row: bigint, attempt: int, reason: string>>, "
    "imported array<struct<offset: bigint, rows: bigint, reason: string, checksum: string>>, lost_from bigint, "
    "lost_to bigint, base bigint, topics array<string>, problem string"
)
_ID: Final = "shard int, first_due bigint, first_offset bigint, first_row bigint, mac bigint"
DELIVERIES: Final = (
    "topic string, partition int, offset bigint, at bigint, by_broker boolean, due bigint, attempt int, "
    f"content bigint, id string, {_ID}, metadata bigint, key_hash int"
)
DEAD_LETTERS: Final = (
    "topic string, partition int, offset bigint, at bigint, by_broker boolean, due bigint, attempt int, "
    f"content bigint, id string, reason string, destination string, command bigint, {_ID}, metadata bigint, "
    "shortened boolean, command_shard int"
)


# --- records of plain clients -----------------------------------------------------------------------------------------


def plain(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Read the headers of plain Kafka clients, record by record. The input columns are `shard`, `offset`, `at`, `said`
    (key and headers as JSON without nulls, bytes as base64, and `is_null` if the value is null) and `content`."""
    schema = pa.schema([(name, _ARROW[kind]) for name, kind in (field.split() for field in PLAIN.split(", "))])
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            record = orjson.loads(row.pop("said"))
            headers = [
                (one["key"], b64decode(one["value"]) if "value" in one else None) for one in record.get("headers", ())
            ]
            key = b64decode(record["key"]) if "key" in record else None
            meaning = plain_records.read(key, headers, row["at"], row["shard"], record.get("is_null", False))
            rows.append(row | {"plain": True} | meaning.columns())
        yield pa.RecordBatch.from_pylist(rows, schema)


_ARROW: Final = {
    "int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "boolean": pa.bool_(), "binary": pa.binary(),
}  # fmt: skip


def key_hashes(keys: pa.Array) -> pa.Array:
    """The hashes from which Kafka's clients compute the partition of a keyed record: positive murmur2. Null if the
    record has no key."""
    encoded = keys.dictionary_encode()  # most topics have far fewer keys than records
    hashes = [murmurhash2(key, _KAFKA_SEED) & 0x7FFF_FFFF for key in encoded.dictionary.to_pylist()]
    return pa.array(hashes, pa.int32()).take(encoded.indices)


# --- the ledger -------------------------------------------------------------------------------------------------------

_ANSWER = pa.struct([("offset", pa.int64()), ("answer", pa.int32())])
_DEFERRED = pa.struct([
    ("due", pa.int64()), ("offset", pa.int64()), ("row", pa.int64()), ("to_due", pa.int64()),
    ("to_offset", pa.int64()), ("to_row", pa.int64()), ("attempt", pa.int32()), ("reason", pa.string()),
])  # fmt: skip
_IMPORTED = pa.struct([
    ("offset", pa.int64()), ("rows", pa.int64()), ("reason", pa.string()), ("checksum", pa.string())
])  # fmt: skip
_ENTRY_SCHEMA = pa.schema([
    ("shard", pa.int32()), ("ledger_offset", pa.int64()), ("written", pa.int64()),
    *((name, pa.int64()) for name in (
        "n", "applied", "cursor_due", "cursor_offset", "cursor_row", "at", "pending",
    )),
    ("checksum", pa.string()),
    *((name, pa.int64()) for name in ("accepted", "delivered", "cancelled", "dead", "horizon", "end_horizon")),
    ("answers", pa.list_(_ANSWER)), ("deferred", pa.list_(_DEFERRED)), ("imported", pa.list_(_IMPORTED)),
    *((name, pa.int64()) for name in ("lost_from", "lost_to", "base")),
    ("topics", pa.list_(pa.string())), ("problem", pa.string()),
])  # fmt: skip


_NEVER_IN_PLAIN: Final = {"deferred": _DEFERRED, "imported": _IMPORTED}


def entries(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Read entries of the ledger. The input columns are `shard`, `ledger_offset`, `written` and `value`."""
    for batch in batches:
        plain = ledger_columns.is_plain(batch["value"])
        if (read := _plain_entries(batch.filter(plain))) is not None:
            yield read
            batch = batch.filter(pc.invert(plain))
        if not batch.num_rows:
            continue
        rows = [entry for row in batch.to_pylist() if (entry := _entry(row)) is not None]
        answers = [row.pop("answers", None) for row in rows]
        table = pa.RecordBatch.from_pylist([row | {"answers": None} for row in rows], _ENTRY_SCHEMA)
        at = _ENTRY_SCHEMA.get_field_index("answers")
        yield table.set_column(at, "answers", _answers(answers))


def _plain_entries(batch: pa.RecordBatch) -> pa.RecordBatch | None:
    """Read plain entries, as nearly all entries are; None if one of them is not in the form that the server writes."""
    read = ledger_columns.columns(batch["value"]) if batch.num_rows else None
    if read is None:
        return None
    known = read | {name: batch[name] for name in ("shard", "ledger_offset", "written")}
    nothing = pa.array(np.zeros(batch.num_rows + 1, np.int32))
    known |= {
        name: pa.ListArray.from_arrays(nothing, pa.nulls(0, of)) for name, of in _NEVER_IN_PLAIN.items()
    }  # fmt: skip
    columns = [known.get(one.name, pa.nulls(batch.num_rows, one.type)) for one in _ENTRY_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=_ENTRY_SCHEMA)


def _answers(answers: list[Any]) -> pa.Array:
    """The answers in many entries, without a Python object for each answer."""
    sizes = np.fromiter((len(one or ()) for one in answers), np.int32, len(answers))
    total = int(sizes.sum())
    offsets = np.fromiter((offset for one in answers for offset in one or ()), np.int64, total)
    codes = np.fromiter((code for one in answers for code in (one or {}).values()), np.int32, total)
    values = pa.StructArray.from_arrays([pa.array(offsets), pa.array(codes)], fields=list(_ANSWER))
    ends = np.concatenate((np.zeros(1, np.int32), np.cumsum(sizes, dtype=np.int32)))
    return pa.ListArray.from_arrays(pa.array(ends), values)


def _entry(row: dict[str, Any]) -> dict[str, Any] | None:
    """The row of an entry; None for a barrier, which is not about messages."""
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
    imported = [
        {"offset": one.offset, "rows": one.rows, "reason": one.reason, "checksum": f"{one.checksum:016x}"}
        for one in entry.imported
    ]
    accepted, delivered, cancelled, dead = entry.outcomes
    lost_from, lost_to = entry.lost or (None, None)
    return row | {
        "n": entry.number, "applied": entry.applied, "cursor_due": min(cursor_due, _LONG_MAX),
        "cursor_offset": min(cursor_offset, _LONG_MAX), "cursor_row": cursor_row, "at": entry.at,
        "pending": entry.pending, "checksum": f"{entry.checksum:016x}", "accepted": accepted, "delivered": delivered,
        "cancelled": cancelled, "dead": dead, "horizon": entry.horizon, "end_horizon": entry.end_horizon,
        "answers": entry.answers,
        "deferred": deferred, "imported": imported, "lost_from": lost_from, "lost_to": lost_to, "base": entry.base,
        "topics": entry.topics,
    }  # fmt: skip
