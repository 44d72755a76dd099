"""Records of duemq's topics decoded in whole Arrow batches: the functions that `logs.py` gives to `mapInArrow`."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from duemq.model.adoption import Adopt
from duemq.model.errors import CorruptStore
from duemq.model.ids import ID_CHARS, SPLIT_FIELDS, IdCodec, MessageId, peek
from duemq.model.key import read_key
from duemq.model.ledger import Barrier, read_ledger
from duemq.model.message import (
    CANCEL,
    COMMAND_HEADER,
    DELIVER_NOW,
    ENVELOPE,
    FINGERPRINT_BYTES,
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
Numbers = npt.NDArray[np.int64]

_LONG_MAX: Final = 2**63 - 1
_KINDS: Final = {
    SCHEDULE: "schedule", CANCEL: "cancel", MOVE: "move", DELIVER_NOW: "deliver_now", REDRIVE: "redrive",
}  # fmt: skip

COMMANDS: Final = (
    "shard int, offset bigint, at bigint, kind string, plain boolean, due bigint, topic string, name string, "
    "expires bigint, first_due bigint, first_offset bigint, first_row bigint, path string, sha256 string, size bigint, "
    "window bigint, rows bigint, content bigint"
)
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
    f"content bigint, id string, {_ID}"
)
DEAD_LETTERS: Final = (
    "topic string, partition int, offset bigint, at bigint, by_broker boolean, due bigint, attempt int, "
    f"content bigint, id string, reason string, target string, command bigint, {_ID}"
)


# --- bytes of many values at once -------------------------------------------------------------------------------------


class _Bytes:
    """The values of a binary column: where each begins and ends in one piece of memory."""

    def __init__(self, column: pa.Array) -> None:
        column = column.cast(pa.large_binary())
        _, offsets, data = column.buffers()
        bounds = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        self.data = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        self.starts, self.sizes = bounds[:-1], np.diff(bounds)

    def heads(self, dtype: np.dtype[Any], rows: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """The first bytes of these values, each of which has so many."""
        at = self.starts[rows][:, None] + np.arange(dtype.itemsize)
        return np.ascontiguousarray(self.data[at]).view(dtype).reshape(len(rows))

    def parts(self, rows: npt.NDArray[np.intp], first: Numbers, sizes: Numbers) -> pa.Array:
        """Of each of these values the bytes from `first` on, as many as `sizes` says."""
        starts = self.starts[rows] + first
        ends = np.cumsum(sizes)
        at = np.repeat(starts - (ends - sizes), sizes) + np.arange(ends[-1] if len(ends) else 0)
        bounds = np.concatenate((np.zeros(1, np.int64), ends))
        values = [None, pa.py_buffer(bounds), pa.py_buffer(self.data[at])]
        return pa.Array.from_buffers(pa.large_binary(), len(rows), values)


def _long(values: npt.NDArray[Any]) -> Numbers:
    """Unsigned numbers as long as Spark has them."""
    most = values.dtype.type(min(_LONG_MAX, np.iinfo(values.dtype).max))
    found: Numbers = np.minimum(values, most).astype(np.int64)
    return found


def _scattered(size: int, rows: npt.NDArray[np.intp], values: pa.Array) -> pa.Array:
    """A column that has `values` in these rows, and null in the others."""
    where = np.full(size, -1, np.int64)
    where[rows] = np.arange(len(rows))
    return values.take(pa.array(where, mask=where < 0))


# --- commands ---------------------------------------------------------------------------------------------------------

_SCHEDULE_DTYPE = np.dtype([
    ("kind", "u1"), ("format", "u1"), ("size", ">u4"), ("due", ">u8"), ("expires", ">u8"), ("topic", "u1"),
    ("key", ">u2"), ("labels", ">u2"), ("name", "u1"), ("header_count", ">u2"), ("headers", ">u4"),
])  # fmt: skip
_CHANGE_DTYPE = np.dtype([
    ("kind", "u1"), ("format", "u1"), ("size", ">u4"), ("first_due", ">u8"), ("first_offset", ">u8"),
    ("first_row", ">u4"), ("due", ">u8"),
])  # fmt: skip
assert _SCHEDULE_DTYPE.itemsize == _CHANGE_DTYPE.itemsize == ENVELOPE.size


def commands(batches: Batches) -> Iterator[pa.RecordBatch]:
    """`shard`, `offset`, `at`, `envelope`, `plain` (key and headers as JSON, bytes as base64, where there is
    no envelope), `content`."""
    for batch in batches:
        if batch.num_rows:
            yield _commands(batch)


def _commands(batch: pa.RecordBatch) -> pa.RecordBatch:
    size = batch.num_rows
    envelopes = batch["envelope"]
    raw = _Bytes(envelopes)
    own = np.flatnonzero(np.asarray(pc.is_valid(envelopes)) & (raw.sizes >= ENVELOPE.size))
    heads = raw.heads(_SCHEDULE_DTYPE, own)
    kinds = heads["kind"]
    of_schedules, of_changes = kinds == SCHEDULE, (kinds >= CANCEL) & (kinds <= REDRIVE)
    schedules, fields = own[of_schedules], heads[of_schedules]
    topics, names = fields["topic"].astype(np.int64), fields["name"].astype(np.int64)
    tail = np.where(names > 0, FINGERPRINT_BYTES, 0) + names
    key = np.where(fields["key"] == NO_KEY, 0, fields["key"]).astype(np.int64)
    whole = ENVELOPE.size + topics + key + fields["labels"] + fields["headers"] + tail
    sound = whole == raw.sizes[schedules]
    schedules, fields, topics, names, tail = (
        schedules[sound], fields[sound], topics[sound], names[sound], tail[sound],
    )  # fmt: skip
    changes = own[of_changes]
    about = raw.heads(_CHANGE_DTYPE, changes)
    kind = np.full(size, "malformed", object)
    kind[schedules] = "schedule"
    for number, text in _KINDS.items():
        if number != SCHEDULE:
            kind[changes[about["kind"] == number]] = text
    numbers = {name: np.full(size, -1, np.int64) for name in ("due", "first_due", "first_offset", "first_row")}
    expires = np.full(size, -1, np.int64)
    numbers["due"][schedules], expires[schedules] = _long(fields["due"]), _long(fields["expires"])
    for name in ("first_due", "first_offset", "first_row"):
        numbers[name][changes] = _long(about[name])
    at = np.asarray(batch["at"])
    # What is delivered now or redriven is due when its command was appended (delay/rules.py).
    then = np.where(about["kind"] == MOVE, _long(about["due"]), at[changes])
    numbers["due"][changes] = np.where(about["kind"] == CANCEL, -1, then)
    topic_texts = raw.parts(schedules, np.full(len(schedules), ENVELOPE.size), topics)
    named = np.flatnonzero(names)
    rows = schedules[named]
    name_texts = raw.parts(rows, raw.sizes[rows] - tail[named], names[named])
    found: dict[str, pa.Array] = {
        "kind": pa.array(kind, pa.string()),
        "plain": pc.invert(pc.is_valid(envelopes)),
        "topic": _text(_scattered(size, schedules, topic_texts)),
        "name": _text(_scattered(size, rows, name_texts)),
        **{name: pa.array(values, mask=values < 0) for name, values in (*numbers.items(), ("expires", expires))},
        **{name: pa.nulls(size, pa.string()) for name in ("path", "sha256")},
        **{name: pa.nulls(size, pa.int64()) for name in ("size", "window", "rows")},
    }
    plain = np.flatnonzero(np.asarray(pc.is_null(envelopes)))
    if len(plain):
        _add_plain(found, plain, batch)
    columns = {name: batch[name] for name in ("shard", "offset", "at", "content")} | found
    order = [field.split()[0] for field in COMMANDS.split(", ")]
    return pa.RecordBatch.from_arrays([columns[name] for name in order], names=order)


def _text(column: pa.Array) -> pa.Array:
    """As UTF-8; what is none, as U+FFFD."""
    try:
        return column.cast(pa.large_string()).cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if raw is None else raw.decode(errors="replace") for raw in column.to_pylist()]
        return pa.array(texts, pa.string())


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


def _add_plain(found: dict[str, pa.Array], rows: npt.NDArray[np.intp], batch: pa.RecordBatch) -> None:
    """What plain Kafka clients say in headers, record by record: the product's own reader decides what it means."""
    columns = {name: column.to_pylist() for name, column in found.items()}
    codecs: dict[int, _Unchecked] = {}
    taken = batch.take(pa.array(rows))
    for row, shard, at, said in zip(
        rows.tolist(), *(taken[name].to_pylist() for name in ("shard", "at", "plain")), strict=True
    ):
        codec = codecs.setdefault(shard, _Unchecked(shard))
        record = orjson.loads(said)
        headers = [(one["key"], b64decode(one.get("value", ""))) for one in record.get("headers", ())]
        frame = pack_record(b64decode(record["key"]) if "key" in record else None, headers, b"")
        for name, value in _plain(frame, at, Place(shard, None, codec)).items():
            columns[name][row] = value
    for name, values in columns.items():
        found[name] = pa.array(values, found[name].type)


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
    _, due, expires, topic_bytes, *_ = fields
    start = meant.index(COMMAND_HEADER) + len(COMMAND_HEADER) + ENVELOPE.size
    name = read_name(meant, fields)[0].decode() if fields[6] else None
    topic = meant[start : start + topic_bytes].decode()
    return {"kind": "schedule", "due": due, "expires": expires, "topic": topic, "name": name}


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


# --- deliveries -------------------------------------------------------------------------------------------------------

_ID_DTYPE = np.dtype([*SPLIT_FIELDS, ("mac_high", ">u2"), ("mac", ">u4")])
_NO_DIGIT = 255
_SIX_BITS = np.full(256, _NO_DIGIT, np.uint8)  # what each character of an id stands for
_DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_SIX_BITS[np.frombuffer(_DIGITS, np.uint8)] = np.arange(len(_DIGITS))


def deliveries(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Any columns, and `id` as bytes, which becomes text; adds what it says."""
    for batch in batches:
        if batch.num_rows:
            at = batch.schema.get_field_index("id")
            columns = [*batch.set_column(at, "id", _text(batch["id"])).columns, *_ids(batch["id"])]
            names = [*batch.schema.names, "shard", "first_due", "first_offset", "first_row", "mac"]
            yield pa.RecordBatch.from_arrays(columns, names=names)


def _ids(ids: pa.Array) -> list[pa.Array]:
    """What ids say (`duemq.model.ids`), unchecked; null where one has another length or other characters."""
    raw = _Bytes(ids)
    sized = np.flatnonzero(np.asarray(pc.is_valid(ids)) & (raw.sizes == ID_CHARS))
    digits = _SIX_BITS[raw.heads(np.dtype((np.void, ID_CHARS)), sized).view(np.uint8).reshape(len(sized), ID_CHARS)]
    good = (digits != _NO_DIGIT).all(axis=1)
    rows, digits = sized[good], digits[good].reshape(-1, 4).astype(np.uint32)
    packed = digits[:, 0] << 18 | digits[:, 1] << 12 | digits[:, 2] << 6 | digits[:, 3]
    octets = np.stack((packed >> 16, packed >> 8, packed), axis=1).astype(np.uint8)
    fields = np.ascontiguousarray(octets).reshape(-1).view(_ID_DTYPE)
    high = {name: fields[f"{name}_high"].astype(np.int64) << 32 for name in ("due", "offset", "mac")}
    values = {name: high[name] | fields[name].astype(np.int64) for name in high}
    found = (
        (fields["shard"], pa.int32()), (values["due"], pa.int64()), (values["offset"], pa.int64()),
        (fields["row"], pa.int64()), (values["mac"], pa.int64()),
    )  # fmt: skip
    size = len(ids)
    return [_scattered(size, rows, pa.array(value.astype(np.int64)).cast(of)) for value, of in found]
