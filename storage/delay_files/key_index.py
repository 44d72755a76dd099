"""The keys of a delay file without its rows: needs a few dozen bytes of memory per row group, and no open file."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from duemq.model.errors import DamagedFile
from duemq.model.messages.key import read_key
from duemq.storage.delay_files.about import BadPage
from duemq.storage.delay_files.column_chunks import ColumnChunk, chunks_of

_BYTES = 200  # the fixed size of an index, approximately
_LAST_OFFSET = (1 << 64) - 1

Places = Sequence[tuple[int, int]]
"""Due times (ms) and offsets."""


class _PlaceArray:
    """Due times and offsets, in 16 bytes per pair."""

    def __init__(self, places: Places) -> None:
        self._dues = array("q", [due for due, _ in places])
        self._offsets = array("Q", [min(offset, _LAST_OFFSET) for _, offset in places])

    def __call__(self, index: int) -> tuple[int, int]:
        return self._dues[index], self._offsets[index]


class KeyColumns:
    """Columns of integers in row groups of a file. The columns of a group are adjacent in the file."""

    def __init__(self, metadata: pq.FileMetaData, columns: Sequence[int], numbers: Iterable[int]) -> None:
        """`numbers`: those of the row groups. Raises BadPage if the form of the columns is not supported."""
        groups = chunks_of(metadata, columns, numbers)
        forms = {tuple((chunk.codec, chunk.format) for chunk in chunks) for chunks in groups}
        if len(forms) != 1 or any(
            one.start + one.size != other.start for chunks in groups for one, other in pairwise(chunks)
        ):
            raise BadPage("columns that stand apart, or differ")
        self._starts = array("q", [chunks[0].start for chunks in groups])
        self._sizes = array("i", [chunk.size for chunks in groups for chunk in chunks])
        self._rows = array("i", [chunks[0].rows for chunks in groups])
        (self._forms,) = forms

    def read(self, file: int, group: int) -> list[memoryview]:
        """The columns of a row group, counted from 0. `file`: the file's descriptor. Raises BadPage, OSError."""
        count = len(self._forms)
        sizes = self._sizes[group * count : (group + 1) * count]
        raw = os.pread(file, sum(sizes), self._starts[group])
        columns: list[memoryview] = []
        at = 0
        for size, (codec, form) in zip(sizes, self._forms, strict=True):
            chunk = ColumnChunk(0, size, self._rows[group], codec, form)
            columns.append(chunk.values(raw[at : at + size]))
            at += size
        return columns


def key_columns_of(metadata: pq.FileMetaData, columns: Sequence[int]) -> KeyColumns | None:
    """The columns in all row groups; None if their form is not supported."""
    try:
        return KeyColumns(metadata, columns, range(metadata.num_row_groups))
    except BadPage:
        return None


def read_group(path: Path, metadata: pq.FileMetaData, columns: Sequence[int], group: int) -> list[memoryview]:
    """The columns of one row group. Raises BadPage if only Arrow can read them, and OSError."""
    key_columns = KeyColumns(metadata, columns, [group])
    with _open(path) as file:
        return key_columns.read(file, 0)


class FileKeys(ABC):
    """The keys of a delay file, by row group."""

    def __init__(self, path: Path, columns: KeyColumns | None) -> None:
        """`columns`: None if their form is not supported."""
        self.path, self._columns = path, columns

    @property
    @abstractmethod
    def size(self) -> int:
        """The approximate size in memory, in bytes."""

    @abstractmethod
    def groups(self, key: bytes) -> range:
        """The row groups that may contain a key."""

    @abstractmethod
    def _is_present(self, columns: Sequence[memoryview], group: int, key: bytes) -> bool:
        """Whether a key is in a row group that may contain it. `columns`: those of the row group."""

    def holds(self, keys_by_group: Mapping[int, Sequence[bytes]]) -> set[bytes]:
        """Those of the keys that are in the file. `keys_by_group`: the keys, by the row groups that may contain them.
        Raises DamagedFile, and BadPage if only Arrow can read the file."""
        if self._columns is None:
            raise BadPage("columns of another form")
        present_keys: set[bytes] = set()
        with _open(self.path) as file:
            for group, some in sorted(keys_by_group.items()):
                columns = self._columns.read(file, group)
                present_keys.update(key for key in some if self._is_present(columns, group, key))
        return present_keys


class SealedKeys(FileKeys):
    """The keys of a sealed file."""

    def __init__(self, path: Path, firsts: Places, lasts: Places, columns: KeyColumns | None) -> None:
        """`firsts`, `lasts`: for each row group, a lower and an upper bound of its keys. `columns`: those of due times,
        offsets and row numbers."""
        super().__init__(path, columns)
        self._count, self._firsts, self._lasts = len(firsts), _PlaceArray(firsts), _PlaceArray(lasts)

    @property
    def size(self) -> int:
        return _BYTES + 56 * self._count

    def groups(self, key: bytes) -> range:
        due, offset, _ = read_key(key)
        groups, place = range(self._count), (due, offset)
        return range(bisect_left(groups, place, key=self._lasts), bisect_right(groups, place, key=self._firsts))

    def _is_present(self, columns: Sequence[memoryview], group: int, key: bytes) -> bool:
        return place_of(columns, key) is not None


def place_of(columns: Sequence[Any], key: bytes) -> int | None:
    """The position of a key in lexicographically sorted columns; None if the key is missing."""
    start, end = 0, len(columns[0])
    for column, value in zip(columns, read_key(key), strict=True):
        start = bisect_left(column, value, start, end)
        end = bisect_right(column, value, start, end)
    return start if start < end else None


@contextmanager
def _open(path: Path) -> Iterator[int]:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield file
        finally:
            os.close(file)
    except OSError as error:
        raise DamagedFile(f"delay file {path} is missing or damaged: {error}", str(path)) from error


class ImportedKeys(FileKeys):
    """The keys of an imported file. A key contains its row number, so only its due time must be compared."""

    def __init__(self, path: Path, offset: int, starts: Sequence[int], columns: KeyColumns | None) -> None:
        """`starts`: the number of each row group's first row, then the number of all rows. `columns`: the due times in
        each row group."""
        super().__init__(path, columns)
        self._offset, self._starts = offset, array("q", starts)

    @property
    def size(self) -> int:
        return _BYTES + 24 * len(self._starts)

    def groups(self, key: bytes) -> range:
        _, offset, row = read_key(key)
        if offset != self._offset or row >= self._starts[-1]:
            return range(0)
        group = bisect_right(self._starts, row) - 1
        return range(group, group + 1)

    def _is_present(self, columns: Sequence[memoryview], group: int, key: bytes) -> bool:
        due, _, row = read_key(key)
        is_present: bool = columns[0][row - self._starts[group]] == due
        return is_present
