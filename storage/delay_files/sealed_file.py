"""Delay files: pending messages of one shard and one 30-minute window as Parquet, sorted by key.

    due_ms int64, offset int64, row int32     the key (model/messages/key.py); each key is unique
    topic string, key binary, payload binary  for any Parquet tool, to inspect messages that are due in the far future
    head binary                               the store's row up to its payload (model/messages/row.py)

A null payload is empty in its column, because older versions join both columns; `head` marks it as null.

Columns are compressed with zstd (those of the key with lz4), and each page has a checksum. Row groups are small and
have statistics, so that a row is found by reading one group. A group has at most 1,024 rows, and at most 4 MiB unless
one message is larger. In older files a group has up to 4,096 rows, and in some of these its bytes are not limited. The
columns of the key have the form that `column_chunks.py` reads. The file's metadata contains its format version, shard,
window, number of rows, first and last key, and a checksum of the content.

To raise `FORMAT` (about.py), keep the reader for the old format: a file lives until its last message is due.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from duemq.model.errors import CorruptStore, DamagedFile
from duemq.model.messages.key import KEY_BYTES, KEY_DTYPE, due_of, offset_of
from duemq.model.messages.row import message_key_in, payload_at, topic_of
from duemq.model.rocksdb_errors import translate_errors
from duemq.model.timing import WINDOW_MS
from duemq.storage.delay_files.about import FORMAT, About, BadPage, Part
from duemq.storage.delay_files.key_index import SealedKeys, key_columns_of, place_of, read_group
from duemq.storage.fsync import sync_folder

ROWS_PER_GROUP = 1_024
GROUP_BYTES = 4 << 20  # a lookup reads one whole row group
_LAST_OFFSET = 1 << 64

_SCHEMA = pa.schema([
    pa.field("due_ms", pa.int64(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("row", pa.int32(), nullable=False),
    pa.field("topic", pa.string(), nullable=False),
    pa.field("key", pa.binary()),
    pa.field("payload", pa.binary(), nullable=False),
    pa.field("head", pa.binary(), nullable=False),
])  # fmt: skip
_OF_KEY, _OF_ROW = ["due_ms", "offset", "row"], ["head", "payload"]
# A lookup reads only keys: with lz4 it takes a third of the time, at the cost of 5 more bytes per message.
_COMPRESSION = {name: "lz4" if name in _OF_KEY else "zstd" for name in _SCHEMA.names}
_LEVELS = {name: 1 for name, codec in _COMPRESSION.items() if codec == "zstd"}
_KEY_COLUMNS = [_SCHEMA.get_field_index(name) for name in _OF_KEY]
_PAYLOAD = _SCHEMA.get_field_index("payload")
_ABOUT = b"duemq"


def parts_of(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[Part]:
    """Keys and rows in parts, one part per row group."""
    keys: list[bytes] = []
    values: list[bytes] = []
    size = 0
    for key, row in rows:
        if keys and (len(keys) == ROWS_PER_GROUP or size + len(row) > GROUP_BYTES):
            yield keys, values
            keys, values, size = [], [], 0
        keys.append(key)
        values.append(row)
        size += len(row)
    if keys:
        yield keys, values


def write(path: Path, shard: int, window: int, parts: Iterable[Part]) -> About:
    """Write a file, sync it, and rename it to `path` last. Each part (see `parts_of`) becomes a row group.

    Blocks; meant for a child process. Only one part at a time is in memory.

    Raises CorruptStore for keys that are out of order or in another window, DiskFull and StoreFailed.
    """
    digest, rows, first, last = blake2b(digest_size=16), 0, b"", b""
    temporary = path.with_suffix(".new")
    with translate_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(
            temporary, _SCHEMA, compression=_COMPRESSION, compression_level=_LEVELS, use_dictionary=["topic"],
            # Statistics of heads and payloads would make footers of tens of megabytes.
            write_page_checksum=True, write_statistics=["due_ms", "offset"],
        ) as file:  # fmt: skip
            for keys, values in parts:
                _check_order(path, window, last, keys)
                _digest(digest, keys, values)
                file.write_table(_table(keys, values), row_group_size=len(keys))
                rows, first, last = rows + len(keys), first or keys[0], keys[-1]
            about = About(shard, window, rows, first.hex(), last.hex(), digest.hexdigest())
            file.add_key_value_metadata({_ABOUT: about.encode()})
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.rename(path)
        sync_folder(path.parent)
    return about


def _check_order(path: Path, window: int, last: bytes, keys: Sequence[bytes]) -> None:
    for key in keys:
        if key <= last or not window <= due_of(key) < window + WINDOW_MS:
            raise CorruptStore(f"{path}: key {key.hex()} is out of order, or not of the window that starts at {window}")
        last = key


def _digest(digest: Any, keys: Sequence[bytes], rows: Sequence[bytes]) -> None:
    digest.update(b"".join(keys))
    digest.update(np.fromiter(map(len, rows), "<u4", len(rows)).tobytes())
    digest.update(b"".join(rows))


def _table(keys: Sequence[bytes], rows: Sequence[bytes]) -> pa.Table:
    parts = np.frombuffer(b"".join(keys), KEY_DTYPE)
    cuts = list(map(payload_at, rows))
    columns = (
        parts["due"].astype(np.int64), parts["offset"].astype(np.int64), parts["row"].astype(np.int32),
        pa.array(map(topic_of, rows), pa.binary()).cast(pa.string()),
        pa.array(map(message_key_in, rows), pa.binary()),
        pa.array((row[cut:] for row, cut in zip(rows, cuts, strict=True)), pa.binary()),
        pa.array((row[:cut] for row, cut in zip(rows, cuts, strict=True)), pa.binary()),
    )  # fmt: skip
    return pa.table(list(map(pa.array, columns)), schema=_SCHEMA)


def _bounds(metadata: pq.FileMetaData) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Lower and upper bounds of each row group; each bound is a due time and an offset.

    Statistics are per column, so those of offsets are useful only if a whole group is due in the same ms. Then a lookup
    among many messages due in one ms need not read all of them.
    """
    firsts: list[tuple[int, int]] = []
    lasts: list[tuple[int, int]] = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        due, offset = group.column(0).statistics, group.column(1).statistics
        start, end = due.min, due.max
        same = start == end and offset is not None
        firsts.append((start, offset.min if same else 0))
        lasts.append((end, offset.max if same else _LAST_OFFSET))
    # The file is sorted, so a lower bound of one group is a lower bound of all later groups.
    return list(accumulate(firsts, max)), list(accumulate(reversed(lasts), min))[::-1]


class DelayFile:
    """A delay file opened for reading. All methods block, and raise DamagedFile if the file is missing or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._sound():
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            metadata = self._file.metadata
            self.about = About.decode((metadata.metadata or {}).get(_ABOUT, b""))
            if self.about.format != FORMAT or metadata.num_rows != self.about.rows:
                raise DamagedFile(
                    f"{path}: format {self.about.format} with {metadata.num_rows} rows of {self.about.rows}; "
                    f"this duemq reads format {FORMAT}",
                    str(path),
                )
            self._metadata = metadata
            self._firsts, self._lasts = _bounds(metadata)

    @contextmanager
    def _sound(self) -> Iterator[None]:
        try:
            yield
        except DamagedFile:
            raise
        except (pa.ArrowException, OSError, CorruptStore) as error:
            raise DamagedFile(f"delay file {self.path} is missing or damaged: {error}", str(self.path)) from error

    def rows(self, keys: Iterable[bytes], *, payload: bool = True) -> dict[bytes, bytes]:
        """The rows of those keys that are in the file. Reads each candidate row group once.

        Without `payload` the rows end before the payload, which makes reading three times as fast.
        """
        keys_by_group: dict[int, set[bytes]] = {}
        for key in keys:
            for group in self.groups(key):
                keys_by_group.setdefault(group, set()).add(key)
        rows: dict[bytes, bytes] = {}
        for group, some in sorted(keys_by_group.items()):
            if some := some - rows.keys():
                places = self._places(group, sorted(some))
                if places:
                    group_rows = self._rows(group, pa.array(list(places.values())), payload=payload)
                    rows.update(zip(places, group_rows, strict=True))
        return rows

    def holds(self, keys: Iterable[bytes]) -> frozenset[bytes]:
        """Those of the keys that are in the file."""
        keys_by_group: dict[int, list[bytes]] = {}
        for key in sorted(keys):
            for group in self.groups(key):
                keys_by_group.setdefault(group, []).append(key)
        return frozenset(key for group, some in sorted(keys_by_group.items()) for key in self._places(group, some))

    def _places(self, group: int, keys: list[bytes]) -> dict[bytes, int]:
        """The positions of those keys that are in a row group."""
        columns = self._key_columns(group)
        places = ((key, place_of(columns, key)) for key in keys)
        return {key: place for key, place in places if place is not None}

    def _key_columns(self, group: int) -> Sequence[Any]:
        with self._sound():
            try:
                return read_group(self.path, self._metadata, _KEY_COLUMNS, group)
            except BadPage:
                table = self._file.read_row_group(group, columns=_OF_KEY, use_threads=False)
                return [table[name].to_numpy().data for name in _OF_KEY]

    def groups(self, key: bytes) -> range:
        """The row groups that may contain a key."""
        place = due_of(key), offset_of(key)
        return range(bisect_left(self._lasts, place), bisect_right(self._firsts, place))

    def group_bytes(self, group: int, *, payload: bool = True) -> int:
        """How many bytes of a row group must be read for its rows."""
        row_group = self._metadata.row_group(group)
        size: int = row_group.total_byte_size
        return size if payload else size - row_group.column(_PAYLOAD).total_uncompressed_size

    @property
    def footer_bytes(self) -> int:
        size: int = self._metadata.serialized_size
        return size

    def key_index(self) -> SealedKeys:
        """The index of the file's keys, which can still be used after the file is closed."""
        return SealedKeys(self.path, self._firsts, self._lasts, key_columns_of(self._metadata, _KEY_COLUMNS))

    def parts(self, after: bytes = b"") -> Iterator[Part]:
        """All messages above a key, one row group at a time."""
        first = bisect_left(self._lasts, (due_of(after), offset_of(after))) if after else 0
        for group in range(first, len(self._firsts)):
            keys, rows = self._keys(group), self._rows(group)
            if keys[0] <= after:
                skip = sum(key <= after for key in keys)
                keys, rows = keys[skip:], rows[skip:]
            if keys:
                yield keys, rows

    def whole(self) -> Iterator[Part]:
        """All messages. Raises at the end if the content does not match the file's metadata."""
        digest, last = blake2b(digest_size=16), b""
        for keys, rows in self.parts():
            with self._sound():
                _check_order(self.path, self.about.window, last, keys)
            _digest(digest, keys, rows)
            last = keys[-1]
            yield keys, rows
        if digest.hexdigest() != self.about.content:
            raise DamagedFile(
                f"delay file {self.path} does not match its metadata: its content's checksum is wrong", str(self.path)
            )

    def dues_of(self, offset: int, rows: range) -> npt.NDArray[np.int64]:
        """The due times (ms), by row, of those `rows` of the import command at `offset` that the file has."""
        parts = [np.empty(0, np.int64)]
        for group in range(len(self._firsts)):
            statistics = self._metadata.row_group(group).column(1).statistics
            if statistics is None or statistics.min <= offset <= statistics.max:
                keys = self._key_array(group)
                chosen = (keys["offset"] == offset) & (keys["row"] >= rows.start) & (keys["row"] < rows.stop)
                parts.append(keys["due"][chosen].astype(np.int64))
        return np.concatenate(parts)

    def close(self) -> None:
        self._file.close()

    def _key_array(self, group: int) -> npt.NDArray[np.void]:
        """The keys in a row group as an array of `KEY_DTYPE`."""
        with self._sound():
            # Arrow's threads read one group faster, but make the slowest reads ten times slower.
            table = self._file.read_row_group(group, columns=_OF_KEY, use_threads=False)
        keys = np.empty(table.num_rows, KEY_DTYPE)
        for name, column in zip(KEY_DTYPE.names or (), _OF_KEY, strict=True):
            keys[name] = table[column].to_numpy()
        return keys

    def _keys(self, group: int) -> list[bytes]:
        raw = self._key_array(group).tobytes()
        return [raw[at : at + KEY_BYTES] for at in range(0, len(raw), KEY_BYTES)]

    def _rows(self, group: int, places: pa.Array | None = None, *, payload: bool = True) -> list[bytes]:
        with self._sound():
            table = self._file.read_row_group(group, columns=_OF_ROW if payload else ["head"], use_threads=False)
        if places is not None:
            table = table.take(places)
        if not payload:
            heads: list[bytes] = table["head"].to_pylist()
            return heads
        column = pc.binary_join_element_wise(table["head"], table["payload"], b"")
        rows: list[bytes] = column.to_pylist()
        return rows
