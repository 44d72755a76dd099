"""Reads many entries of the ledger at once with Arrow's JSON reader, without Python objects.

It reads the entries of cycles that only applied and delivered commands, as nearly all cycles do. `decode.py` reads the
others one by one: entries that defer messages, import files or lose commands, and invalid entries.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from duemq.model.log.ledger import ENTRY_FORMAT, Answer
from duemq.model.messages.key import KEY_DTYPE

_LONG_MAX: Final = 2**63 - 1
_NUMBERS: Final = ("n", "applied", "at", "pending")
_OUTCOMES: Final = ("accepted", "delivered", "cancelled", "dead")
_HORIZONS: Final = ("horizon", "end_horizon")
_SCHEMA: Final = pa.schema([
    *((name, pa.int64()) for name in ("v", *_NUMBERS, *_HORIZONS)), ("cursor", pa.string()), ("checksum", pa.string()),
    ("fates", pa.list_(pa.int64())), ("answers", pa.list_(pa.list_(pa.int64()))), ("topics", pa.list_(pa.string())),
])  # fmt: skip
_READ: Final = pa.json.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="error")
_START: Final = b'{"v":%d,"n":' % ENTRY_FORMAT
_OTHERS: Final = f'"({"|".join(("deferred", "adopted", "lost", "base", "named"))})":'
_ANSWER: Final = pa.struct([("offset", pa.int64()), ("answer", pa.int32())])

Numbers = npt.NDArray[np.int64]


def is_plain(values: pa.Array) -> pa.Array:
    """For each of these records, whether `columns` may be able to read it."""
    starts = pc.starts_with(values, _START.decode())
    special = pc.match_substring_regex(values, _OTHERS)
    return pc.fill_null(pc.and_(starts, pc.invert(pc.or_(special, pc.match_substring(values, "\n")))), False)


def columns(values: pa.Array) -> dict[str, pa.Array] | None:
    """The columns of `decode.ENTRIES` for these entries (bytes, each `is_plain`), by name; None if one of them is not
    in the form that the server writes."""
    ends = pa.array([0, len(values)], pa.int32())
    text = pc.binary_join(pa.ListArray.from_arrays(ends, values), b"\n")[0].as_buffer()
    try:
        whole = pa.json.ReadOptions(use_threads=False, block_size=text.size + 1)
        table = pa.json.read_json(pa.BufferReader(text), whole, _READ)
    except pa.ArrowInvalid:
        return None
    read: dict[str, Any] = {name: table[name].combine_chunks() for name in _SCHEMA.names}
    needed = ("v", *_NUMBERS, "cursor", "checksum", "fates")
    if len(table) != len(values) or any(read[name].null_count for name in needed):
        return None
    cursors, checksums = (_hexed(read[name], digits) for name, digits in (("cursor", 40), ("checksum", 16)))
    counts = read["fates"].flatten()
    answers = _answers(read["answers"])
    if cursors is None or checksums is None or answers is None or counts.null_count:
        return None
    if not pc.all(pc.equal(pc.list_value_length(read["fates"]), len(_OUTCOMES))).as_py():
        return None
    outcomes = np.asarray(counts).reshape(-1, len(_OUTCOMES))
    keys = np.frombuffer(cursors, KEY_DTYPE)
    return {
        **{name: read[name] for name in (*_NUMBERS, "checksum", "topics")},
        **{name: read[name].fill_null(0) for name in _HORIZONS},
        **{name: pa.array(outcomes[:, at]) for at, name in enumerate(_OUTCOMES)},
        **{f"cursor_{name}": pa.array(np.minimum(keys[name].astype(np.uint64), _LONG_MAX).astype(np.int64))
           for name in KEY_DTYPE.names or ()},
        "answers": answers,
    }  # fmt: skip


def _hexed(texts: pa.Array, digits: int) -> bytes | None:
    """The bytes in texts of `digits` lowercase hex digits each; None if a text has another form."""
    if not pc.all(pc.match_substring_regex(texts, f"^[0-9a-f]{{{digits}}}$")).as_py():
        return None
    return bytes.fromhex("".join(texts.to_pylist()))


def _answers(runs: pa.Array) -> pa.Array | None:
    """Runs of answers (`Entry.encode`), expanded to an answer per command; None if the runs are invalid."""
    runs_of = np.asarray(pc.list_value_length(runs).fill_null(0)).astype(np.int64)
    flat = runs.flatten()
    if flat.null_count or not pc.all(pc.equal(pc.list_value_length(flat), 3), min_count=0).as_py():
        return None
    numbers = flat.flatten()
    if numbers.null_count:
        return None
    first, count, code = np.asarray(numbers).astype(np.int64).reshape(-1, 3).T
    if (count < 0).any() or (code < 0).any() or (code > max(Answer)).any():
        return None
    follows = np.diff(np.repeat(np.arange(len(runs)), runs_of)) == 0
    if (follows & (first[1:] < first[:-1] + count[:-1])).any():
        return None
    ends = _ends(count)
    offsets = np.repeat(first - ends[:-1], count) + np.arange(ends[-1])
    values = [pa.array(offsets), pa.array(np.repeat(code, count).astype(np.int32))]
    answers = pa.StructArray.from_arrays(values, fields=list(_ANSWER))
    return pa.ListArray.from_arrays(pa.array(ends[_ends(runs_of)].astype(np.int32)), answers)


def _ends(counts: Numbers) -> Numbers:
    """The cumulative counts, starting with 0."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
