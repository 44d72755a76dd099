"""Reads imported delay files: other programs wrote them, and they were validated (storage/imports/import_file.py).

The file was imported by the command at `About.offset` of its shard. Row number i, counted from 0, is the message with
the key `due_ms | offset | i`, and the message's id has the same parts. Store rows are built when the file is read.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from duemq.model.errors import DamagedFile
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import CHECKSUM_MASK, KEY_BYTES, KEY_DTYPE, checksum_of_rows, due_of, read_key
from duemq.model.messages.record import NULL_VALUE, pack_headers
from duemq.model.messages.row import PLAIN_DUES, new_row, plain_row
from duemq.storage.delay_files.about import About, Part
from duemq.storage.delay_files.columns import SCHEMA, has_form
from duemq.storage.delay_files.key_index import ImportedKeys, key_columns_of
from duemq.storage.delay_files.sealed_file import DelayFile

MAX_TOPICS: Final = 1_000
"""In a file with more topics than this, messages are not counted by topic."""

_PAYLOAD = SCHEMA.get_field_index("payload")  # also its index among leaves, as each column before it has only one
_HEAD = [name for name in SCHEMA.names if name != "payload"]


def dues(path: Path) -> Iterator[npt.NDArray[np.int64]]:
    """The due times (ms) in an imported file, in order, some thousands at a time. Raises DamagedFile."""
    with _sound(path), pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True) as file:
        for batch in file.iter_batches(1 << 16, columns=["due_ms"]):
            yield batch["due_ms"].to_numpy()


def ids_of(path: Path, about: About, ids: IdCodec, offset: int, rows: range) -> bytes | None:
    """The ids, one after another, for `rows` of the file that the command at `offset` imported. None unless this file,
    either that one or one that it was joined into, has all of these rows. Raises DamagedFile."""
    due_times = DelayFile(path).dues_of(offset, rows) if about.offset is None else _dues_of(path, rows)
    return b"".join(ids.issue_many(about.shard, due_times, offset, rows.start)) if len(due_times) == len(rows) else None


def _dues_of(path: Path, rows: range) -> npt.NDArray[np.int64]:
    with _sound(path), pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True) as file:
        counts = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
        starts = list(accumulate(counts, initial=0))
        groups = range(bisect_right(starts, rows.start) - 1, bisect_left(starts, rows.stop))
        table = file.read_row_groups(list(groups), columns=["due_ms"], use_threads=False)
        skip = rows.start - starts[groups.start]
        due_times: npt.NDArray[np.int64] = table["due_ms"].to_numpy()[skip : skip + len(rows)]
    return due_times


def checksum_of(path: Path, offset: int) -> int:
    """`model.key.checksum` of the keys of all rows in an imported file. Raises DamagedFile."""
    total = row = 0
    for some in dues(path):
        total += checksum_of_rows(some, offset, row)
        row += len(some)
    return total & CHECKSUM_MASK


def topics_of(path: Path) -> dict[str, int] | None:
    """How many messages in an imported file each topic has; None for more than `MAX_TOPICS`. Raises DamagedFile."""
    topics = Counter[str]()
    with _sound(path), pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True) as file:
        for batch in file.iter_batches(1 << 16, columns=["topic"]):
            counted = pc.value_counts(batch["topic"])
            topics.update(
                dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))
            )
            if len(topics) > MAX_TOPICS:
                return None
    return dict(topics)


@contextmanager
def _sound(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:  # a damaged footer can raise any of these
        raise DamagedFile(f"delay file {path} is missing or damaged: {error}", str(path)) from error


class ImportedFile:
    """An imported file opened for reading, like a `DelayFile`. All methods block, and raise DamagedFile.

    `about`: the file's metadata in the shard's catalog. `ids`: issues the ids of the file's messages.
    """

    def __init__(self, path: Path, about: About, ids: IdCodec) -> None:
        if about.offset is None:
            raise ValueError(f"{path} is a sealed file")
        self.path, self.about, self._offset, self._ids = path, about, about.offset, ids
        with _sound(path):
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            metadata = self._metadata = self._file.metadata
            if metadata.num_rows != about.rows or not has_form(self._file.schema_arrow):
                raise DamagedFile(f"{path}: has {metadata.num_rows} rows of {about.rows}, or other columns", str(path))
            groups = map(metadata.row_group, range(metadata.num_row_groups))
            self._starts = list(accumulate((group.num_rows for group in groups), initial=0))

    def rows(self, keys: Iterable[bytes], *, payload: bool = True) -> dict[bytes, bytes]:
        """The rows of those keys that are in the file. A key contains the row number, so each row group is read only
        once.

        Without `payload` the rows end before the payload, which makes reading three times as fast.
        """
        keys_by_group: dict[int, dict[int, bytes]] = {}
        for key in keys:
            for group in self.groups(key):
                keys_by_group.setdefault(group, {})[read_key(key)[2] - self._starts[group]] = key
        rows: dict[bytes, bytes] = {}
        for group, some in sorted(keys_by_group.items()):
            rows.update(self._some_rows(group, some, payload))
        return rows

    def holds(self, keys: Iterable[bytes]) -> frozenset[bytes]:
        """Those of the keys that are in the file."""
        keys_by_group: dict[int, list[bytes]] = {}
        for key in keys:
            for group in self.groups(key):
                keys_by_group.setdefault(group, []).append(key)
        present_keys: set[bytes] = set()
        for group, some in sorted(keys_by_group.items()):
            with _sound(self.path):
                due_times = self._file.read_row_group(group, columns=["due_ms"], use_threads=False)["due_ms"].to_numpy()
            start = self._starts[group]
            present_keys.update(key for key in some if due_times[read_key(key)[2] - start] == due_of(key))
        return frozenset(present_keys)

    def _some_rows(self, group: int, keys_by_row: dict[int, bytes], payload: bool) -> Iterator[tuple[bytes, bytes]]:
        """Keys and rows at these positions in a row group, if their due times match their keys."""
        table, first, about = self._read(group, payload=payload), self._starts[group], self.about
        with _sound(self.path):
            table = table.take(pa.array(keys_by_row))
            due_times = table["due_ms"].to_numpy()
            ids = [
                self._ids.issue_bytes(about.shard, due, self._offset, first + row)
                for due, row in zip(map(due_of, keys_by_row.values()), keys_by_row, strict=True)
            ]
            rows = _rows(table, due_times, ids)
        for key, row, due in zip(keys_by_row.values(), rows, due_times, strict=True):
            if due == due_of(key):
                yield key, row

    def groups(self, key: bytes) -> range:
        """The row group that contains a key, if the key is in the file."""
        _, offset, row = read_key(key)
        if offset != self._offset or row >= self.about.rows:
            return range(0)
        group = bisect_right(self._starts, row) - 1
        return range(group, group + 1)

    def group_bytes(self, group: int, *, payload: bool = True) -> int:
        """How many bytes of a row group must be read for its rows."""
        row_group = self._metadata.row_group(group)
        size: int = row_group.total_byte_size
        return size if payload else size - row_group.column(_PAYLOAD).total_uncompressed_size

    @property
    def footer_bytes(self) -> int:
        size: int = self._metadata.serialized_size
        return size

    def key_index(self) -> ImportedKeys:
        """The index of the file's keys, which can still be used after the file is closed."""
        return ImportedKeys(self.path, self._offset, self._starts, key_columns_of(self._metadata, [0]))

    def parts(self, after: bytes = b"") -> Iterator[Part]:
        """All messages above a key, one row group at a time."""
        for group in range(self._group_after(after) if after else 0, len(self._starts) - 1):
            table, first = self._read(group), self._starts[group]
            with _sound(self.path):
                due_times = table["due_ms"].to_numpy()
                keys = self._keys(due_times, first)
                skip = bisect_right(keys, after) if keys[0] <= after else 0
                ids = self._ids.issue_many(self.about.shard, due_times[skip:], self._offset, first + skip)
                rows = _rows(table[skip:], due_times[skip:], ids)
            if rows:
                yield keys[skip:], rows

    def whole(self) -> Iterator[Part]:
        """All messages, after a check that this is the file that was imported."""
        with _sound(self.path), self.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != self.about.content:
            raise DamagedFile(
                f"delay file {self.path} is not what was imported: its SHA-256 is {digest}", str(self.path)
            )
        yield from self.parts()

    def close(self) -> None:
        self._file.close()

    def _group_after(self, key: bytes) -> int:
        """The first row group that may contain messages above a key."""

        def last_due(group: int) -> int:
            last: int = self._metadata.row_group(group).column(0).statistics.max
            return last

        return bisect_left(range(len(self._starts) - 1), due_of(key), key=last_due)

    def _read(self, group: int, *, payload: bool = True) -> pa.Table:
        # Arrow's threads read one group faster, but make the slowest reads ten times slower.
        with _sound(self.path):
            if payload:
                return self._file.read_row_group(group, columns=SCHEMA.names, use_threads=False)
            table = self._file.read_row_group(group, columns=_HEAD, use_threads=False)
        return table.append_column("payload", pa.repeat(pa.scalar(b""), table.num_rows))

    def _keys(self, due_times: npt.NDArray[np.int64], first: int) -> list[bytes]:
        keys = np.empty(len(due_times), KEY_DTYPE)
        keys["due"], keys["offset"], keys["row"] = due_times, self._offset, np.arange(first, first + len(due_times))
        raw = keys.tobytes()
        return [raw[at : at + KEY_BYTES] for at in range(0, len(raw), KEY_BYTES)]


def _rows(table: pa.Table, due_times: npt.NDArray[np.int64], ids: list[bytes]) -> list[bytes]:
    """The store's rows for messages that are due at `due_times` (ms)."""
    topics = [topic.encode() for topic in table["topic"].to_pylist()]
    keys, payloads = table["key"].to_pylist(), table["payload"].to_pylist()
    rows = [
        plain_row(topic, -1 if key is None else len(key)) % (key or b"", id_, due, payload or b"")
        for topic, key, id_, due, payload in zip(topics, keys, ids, due_times.tolist(), payloads, strict=True)
    ]
    rich = np.flatnonzero(_rich(table, due_times)).tolist()
    if rich:
        for at, row in zip(rich, _rich_rows(table.take(pa.array(rich)), [ids[at] for at in rich]), strict=True):
            rows[at] = row
    return rows


def _rich(table: pa.Table, due_times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which messages have more than a topic, a key and a payload, or have a null payload or an unusual due time."""
    rich: npt.NDArray[np.bool_] = (due_times < PLAIN_DUES.start) | (due_times >= PLAIN_DUES.stop)
    rich |= table["expires_ms"].is_valid().to_numpy() | table["payload"].is_null().to_numpy()
    for name in ("headers", "labels"):
        rich |= pc.list_value_length(table[name]).fill_null(0).to_numpy() > 0
    return rich


def _rich_rows(table: pa.Table, ids: list[bytes]) -> Iterator[bytes]:
    """The store's rows for messages of any form."""
    each = pc.list_flatten(table["headers"])
    pairs = zip(*(pc.struct_field(each, name).to_pylist() for name in ("name", "value")), strict=True)
    headers = _as_lists(table["headers"], list(pairs))
    labels = _as_lists(table["labels"], pc.list_flatten(table["labels"]).to_pylist())
    others = (table[name].to_pylist() for name in ("due_ms", "topic", "payload", "key", "expires_ms"))
    for id_, of, words, due, topic, payload, key, expires in zip(ids, headers, labels, *others, strict=True):
        count, packed = pack_headers(of)
        if payload is None:
            packed, payload = packed + NULL_VALUE, b""
        yield new_row(id_, due, topic.encode(), payload, key, count, packed, "\n".join(words).encode(), expires or 0)


def _as_lists(column: pa.ChunkedArray, values: list[Any]) -> Iterator[list[Any]]:
    """The values in each row of a list column, given the values in all rows."""
    ends = np.cumsum(pc.list_value_length(column).fill_null(0).to_numpy()).tolist()
    return (values[start:end] for start, end in pairwise([0, *ends]))
