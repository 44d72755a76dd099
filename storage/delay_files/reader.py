"""Reads delay files while the shard runs: from its event loop or, preferably, from threads."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Generic, NamedTuple, Protocol, TypeVar

from duemq.model.errors import Unavailable
from duemq.model.messages.ids import IdCodec
from duemq.storage.delay_files.about import BadPage, Part

_OPEN_FILES, _FOOTER_BYTES = 16, 32 << 20
_MAX_PARTS, _PART_BYTES = 64, 32 << 20
_MAX_INDEXES, _INDEX_BYTES = 1 << 16, 16 << 20  # enough for 200 million messages in 3,000 windows
_LEAST_BYTES = 1 << 20  # reading a smaller row group takes as much time as reading one of this size,
_LEAST_HEAD_BYTES = _LEAST_BYTES // 3  # and a third of that time without payloads
_KEYS_BYTES = 128 << 10  # the cost of reading a row group's keys: a cycle reads those of 256 groups, in about 10 ms
_OPENING_BYTES = 256 << 10  # the additional cost of opening a file


class KeyIndex(Protocol):
    """Looks up keys without keeping the file open. See `SealedKeys`."""

    @property
    def size(self) -> int: ...
    def groups(self, key: bytes) -> range: ...
    def holds(self, keys_by_group: Mapping[int, Sequence[bytes]]) -> set[bytes]: ...


class OpenFile(Protocol):
    """An open file of any kind. See `DelayFile`."""

    def rows(self, keys: Iterable[bytes], *, payload: bool = True) -> dict[bytes, bytes]: ...
    def holds(self, keys: Iterable[bytes]) -> frozenset[bytes]: ...
    def key_index(self) -> KeyIndex: ...
    def groups(self, key: bytes) -> range: ...
    def group_bytes(self, group: int, *, payload: bool = True) -> int: ...
    @property
    def footer_bytes(self) -> int: ...
    def parts(self, after: bytes = b"") -> Iterator[Part]: ...


class CatalogEntry(Protocol):
    """A file in the catalog. Equal only to a file with the same content."""

    def __hash__(self) -> int: ...
    def open(self, folder: Path, ids: IdCodec | None) -> OpenFile: ...


class _Open(NamedTuple):
    content: OpenFile
    lock: Lock


V = TypeVar("V")


class _Latest(Generic[V]):
    """The most recently used values for some files, bounded by count and total bytes, but at least one value."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._values: OrderedDict[CatalogEntry, tuple[V, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, file: CatalogEntry) -> V | None:
        if (entry := self._values.get(file)) is None:
            return None
        self._values.move_to_end(file)
        return entry[0]

    def put(self, file: CatalogEntry, value: V, size: int) -> None:
        self.pop(file)
        self._values[file] = value, size
        self._bytes += size
        while len(self._values) > 1 and (len(self._values) > self._most or self._bytes > self._most_bytes):
            self._bytes -= self._values.popitem(last=False)[1][1]

    def pop(self, file: CatalogEntry) -> None:
        if (entry := self._values.pop(file, None)) is not None:
            self._bytes -= entry[1]

    def clear(self) -> None:
        self._values.clear()
        self._bytes = 0


class _CachedPart(NamedTuple):
    """A part of a file, and the key above which it was read. If there are no keys, the file has none above that key."""

    after: bytes
    keys: Sequence[bytes]
    rows: Sequence[bytes]


class DelayFileReader:
    """Reads a shard's delay files. Keeps some of them open, and caches the last parts read.

    All methods block and may be called from any thread. They raise DamagedFile, also for a file that is no longer in
    the catalog: then check whether `DelayFileCatalog.version` has changed. Files that leave the cache are closed once
    no reader uses them.
    """

    def __init__(self, folder: Path, ids: IdCodec | None = None) -> None:
        """`ids`: issues the ids of messages in imported files."""
        self._folder, self._ids = folder, ids
        self._lock = Lock()
        self.open_files: _Latest[_Open] = _Latest(_OPEN_FILES, _FOOTER_BYTES)
        self._parts: _Latest[_CachedPart] = _Latest(_MAX_PARTS, _PART_BYTES)
        self.key_indexes: _Latest[KeyIndex] = _Latest(_MAX_INDEXES, _INDEX_BYTES)
        self._closed = False

    def rows(
        self, keys_by_file: Iterable[tuple[CatalogEntry, Sequence[bytes]]], *, payload: bool = True
    ) -> dict[bytes, bytes]:
        """Those of the keys that are in their file, dropped or not, with their rows. Without `payload` the rows end
        before the payload, which makes reading three times as fast."""
        rows: dict[bytes, bytes] = {}
        for file, keys in keys_by_file:
            content, lock = self._open_file(file)
            with lock:
                rows.update(content.rows(keys, payload=payload))
        return rows

    def rows_in_order(
        self, files_by_key: Sequence[tuple[bytes, Sequence[CatalogEntry]]], most: int, *, payload: bool = True
    ) -> tuple[dict[bytes, bytes], int, int]:
        """`rows` for the first of these keys, each given with the files that may contain it: for as many keys as need
        at most `most` bytes of row groups, but at least one. Also returns the number of keys and bytes."""
        groups: set[tuple[CatalogEntry, int]] = set()
        by_file: dict[CatalogEntry, list[bytes]] = {}
        least = _LEAST_BYTES if payload else _LEAST_HEAD_BYTES
        count = size = 0
        for key, files in files_by_key:
            more: dict[tuple[CatalogEntry, int], int] = {}
            for file in files:
                content = self._open_file(file).content
                for group in content.groups(key):
                    if (file, group) not in groups:
                        more[file, group] = max(content.group_bytes(group, payload=payload), least)
            if count and size + sum(more.values()) > most:
                break
            groups.update(more)
            size += sum(more.values())
            count += 1
            for file in files:
                by_file.setdefault(file, []).append(key)
        return self.rows(by_file.items(), payload=payload), count, size

    def found_in_order(
        self, files_by_key: Sequence[tuple[bytes, Sequence[CatalogEntry]]], most: int
    ) -> tuple[set[bytes], int, int]:
        """Those of the first keys that exist, dropped or not. Each key is given with the files that may contain it.
        Looks up as many keys as cost at most `most` bytes, but at least one. Also returns the number of keys and their
        cost."""
        # Files are identified by `id`, because hashing a file takes longer than searching its index.
        lookups: dict[int, tuple[CatalogEntry, KeyIndex, dict[int, list[bytes]]]] = {}
        count = size = 0
        for key, files in files_by_key:
            places: list[tuple[dict[int, list[bytes]], int]] = []
            more = 0
            for file in files:
                if (lookup := lookups.get(id(file))) is None:
                    key_index, opened = self._key_index(file)
                    lookup = lookups[id(file)] = file, key_index, {}
                    more += _OPENING_BYTES if opened else 0
                places += [(lookup[2], group) for group in lookup[1].groups(key)]
            more += _KEYS_BYTES * sum(group not in keys_by_group for keys_by_group, group in places)
            if count and size + more > most:
                break
            for keys_by_group, group in places:
                keys_by_group.setdefault(group, []).append(key)
            size += more
            count += 1
        present_keys: set[bytes] = set()
        for file, key_index, keys_by_group in lookups.values():
            if not keys_by_group:
                continue
            try:
                present_keys |= key_index.holds(keys_by_group)
            except BadPage:
                content, lock = self._open_file(file)
                with lock:
                    present_keys |= content.holds(chain.from_iterable(keys_by_group.values()))
        return present_keys, count, size

    def has_part(self, file: CatalogEntry, after: bytes) -> bool:
        """Whether the result of `part` is in memory."""
        with self._lock:
            return self._cached_part(file, after) is not None

    def part(self, file: CatalogEntry, after: bytes, count: int) -> Part | None:
        """Up to `count` messages in a file above a key, dropped or not; None at the end of the file."""
        with self._lock:
            part = self._cached_part(file, after)
        if part is None:
            content, lock = self._open_file(file)
            with lock:
                keys_and_rows = next(content.parts(after), ((), ()))
            part = _CachedPart(after, *keys_and_rows)
            with self._lock:
                self._parts.put(file, part, sum(map(len, part.rows)))
        if not part.keys:
            return None
        at = bisect_right(part.keys, after)
        return part.keys[at : at + count], part.rows[at : at + count]

    def _cached_part(self, file: CatalogEntry, after: bytes) -> _CachedPart | None:
        part = self._parts.get(file)
        if part is None or after < part.after or (part.keys and after >= part.keys[-1]):
            return None
        return part

    def _key_index(self, file: CatalogEntry) -> tuple[KeyIndex, bool]:
        """The index of a file, and whether the file had to be opened for it."""
        with self._lock:
            if (key_index := self.key_indexes.get(file)) is not None:
                return key_index, False
        content, lock = self._open_file(file)
        with lock:
            key_index = content.key_index()
        with self._lock:
            self.key_indexes.put(file, key_index, key_index.size)
        return key_index, True

    def _open_file(self, file: CatalogEntry) -> _Open:
        with self._lock:
            if self._closed:
                raise Unavailable("the store is closed")
            if (open_file := self.open_files.get(file)) is not None:
                return open_file
        new_file = _Open(file.open(self._folder, self._ids), Lock())
        with self._lock:
            if (open_file := self.open_files.get(file)) is None:
                self.open_files.put(file, new_file, new_file.content.footer_bytes)
            return open_file or new_file

    def forget(self, files: Iterable[CatalogEntry]) -> None:
        """Forget files that are removed from the catalog."""
        with self._lock:
            for file in files:
                self.open_files.pop(file)
                self._parts.pop(file)
                self.key_indexes.pop(file)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self.open_files.clear()
            self._parts.clear()
            self.key_indexes.clear()
