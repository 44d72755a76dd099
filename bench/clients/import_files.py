"""Parquet files to be imported: very many messages, written as fast as they compress.

One file per window of 30 minutes, rows in the order of their due times, row groups of 4,096, zstd. Payloads are of the
same kind as those of `payloads.py`, made by the column and not by the message.
"""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from duemq.bench.clients.payloads import CURRENCIES, KINDS, MIN_BYTES, Payloads

WINDOW_MS = 1_800_000
ROWS_PER_GROUP = 4_096
_AT_ONCE = 8 * ROWS_PER_GROUP

SCHEMA = pa.schema([
    pa.field("due_ms", pa.int64(), nullable=False),
    pa.field("topic", pa.string(), nullable=False),
    pa.field("payload", pa.binary(), nullable=False),
])  # fmt: skip

COMPLETE = pa.schema([
    *SCHEMA,
    pa.field("key", pa.binary()),
    pa.field("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
    pa.field("labels", pa.list_(pa.string())),
    pa.field("expires_ms", pa.int64()),
])  # fmt: skip
"""Every column that there may be, in the order in which duemq keeps them: such files can be linked as they are."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Plan:
    """`files` files of `rows` messages each, for the windows from `first_window` (its start, ms) on.

    Their sequence numbers go on from file to file. `complete`: with all columns, those that are not used full of nulls.
    """

    first_window: int
    files: int
    rows: int
    topic: str
    payload_bytes: int = 256
    seed: int = 1
    complete: bool = False

    @property
    def schema(self) -> pa.Schema:
        return COMPLETE if self.complete else SCHEMA

    @property
    def count(self) -> int:
        return self.files * self.rows

    def window(self, number: int) -> int:
        """The start of file `number`'s window, ms."""
        return self.first_window + number * WINDOW_MS

    def path(self, folder: Path, number: int) -> Path:
        return folder / f"{self.window(number)}.parquet"

    def dues(self, number: int) -> npt.NDArray[np.int64]:
        """When the messages of file `number` are due, epoch ms, in order: drawn uniformly from its window."""
        drawn = np.random.default_rng((self.seed, number, 0)).integers(0, WINDOW_MS, self.rows)
        return np.asarray(self.window(number) + np.sort(drawn), np.int64)


def write(plan: Plan, folder: Path, number: int) -> Path:
    """Write one file of the plan; its path."""
    path, dues = plan.path(folder, number), plan.dues(number)
    columns = GeneratedColumns(plan.payload_bytes, (plan.seed, number, 1))
    with pq.ParquetWriter(
        path, plan.schema, compression="zstd", compression_level=1, use_dictionary=["topic"], write_page_checksum=True
    ) as file:
        for first in range(0, plan.rows, _AT_ONCE):
            some = dues[first : first + _AT_ONCE]
            payloads = columns.make(number * plan.rows + first, len(some))
            topics = pa.DictionaryArray.from_arrays(np.zeros(len(some), np.int32), [plan.topic]).cast(pa.string())
            unused = [pa.nulls(len(some), field.type) for field in plan.schema][len(SCHEMA) :]
            table = pa.table([pa.array(some), topics, binary(payloads), *unused], schema=plan.schema)
            file.write_table(table, row_group_size=ROWS_PER_GROUP)
    return path


def write_all(plan: Plan, folder: Path, processes: int = 2) -> Iterator[int]:
    """Write all files of the plan with some processes; yields how many are there, after each one."""
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), os.nice, (5,)) as pool:
        running = [pool.submit(write, plan, folder, number) for number in range(plan.files)]
        for done, each in enumerate(as_completed(running), 1):
            each.result()
            yield done


def binary(rows: Bytes) -> pa.Array:
    """A matrix of bytes, shape (rows, size), as an Arrow column; its memory is shared."""
    count, size = rows.shape
    ends = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(rows)])


class GeneratedColumns:
    """Payloads of exactly `size` bytes, as matrices of bytes: `Payloads` with all fields of fixed width."""

    def __init__(self, size: int, seed: Sequence[int]) -> None:
        if size < MIN_BYTES:
            raise ValueError(f"a payload needs at least {MIN_BYTES} bytes: it carries its sequence number")
        self._size, self._random = size, np.random.default_rng(seed)
        words = np.frombuffer(Payloads(size, 1).words.encode(), np.uint8)
        self._head = [_text(part) for part in ('{"seq":"', '","kind":"', '","order":"', '","customer":', ',"amount":')]
        self._kinds, self._currencies = _pad(KINDS), _pad(CURRENCIES)
        self._between = [_text(part) for part in (".", ',"currency":"', '","note":"')]
        self._end = _text('"}')
        self._words = np.tile(words, -(-2 * size // len(words))) if len(words) < 2 * size else words

    def make(self, first: int, count: int) -> Bytes:
        """`count` payloads with the sequence numbers from `first` on, shape (count, size)."""
        draw, fixed = self._random.integers, self._head
        seq, kind, order, customer, amount = fixed
        point, currency, note = self._between
        cents = draw(100_000, 1_000_000, count)  # four digits before the point: JSON has no leading zeros
        parts = [
            seq, _digits(np.arange(first, first + count), 12),
            kind, self._kinds[draw(0, len(KINDS), count)],
            order, _hex(draw(0, 1 << 48, count), 12),
            customer, _digits(draw(1_000_000, 9_999_999, count), 7),
            amount, _digits(cents // 100, 4), point, _digits(cents % 100, 2),
            currency, self._currencies[draw(0, len(CURRENCIES), count)],
            note,
        ]  # fmt: skip
        rows = np.empty((count, max(self._size, sum(part.shape[-1] for part in parts) + len(self._end))), np.uint8)
        at = 0
        for part in parts:
            rows[:, at : at + part.shape[-1]] = part
            at += part.shape[-1]
        room = rows.shape[1] - at - len(self._end)
        places = draw(0, len(self._words) - room, count)
        rows[:, at : at + room] = np.lib.stride_tricks.sliding_window_view(self._words, max(room, 1))[places, :room]
        rows[:, at + room :] = self._end
        return np.ascontiguousarray(rows[:, : self._size])


def _text(text: str) -> Bytes:
    return np.frombuffer(text.encode(), np.uint8)


def _pad(words: Sequence[str]) -> Bytes:
    """Words of one width: JSON has no room for padding but within its strings."""
    width = max(map(len, words))
    return np.stack([_text(word.ljust(width, "_")) for word in words])


def _digits(values: npt.NDArray[np.int64], width: int) -> Bytes:
    powers = 10 ** np.arange(width - 1, -1, -1)
    return (values[:, None] // powers % 10 + ord("0")).astype(np.uint8)


def _hex(values: npt.NDArray[np.int64], width: int) -> Bytes:
    nibbles = values[:, None] >> (4 * np.arange(width - 1, -1, -1)) & 15
    return np.asarray(_text("0123456789abcdef")[nibbles], np.uint8)
