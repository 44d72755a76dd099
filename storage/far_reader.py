"""Reading delay files while the shard goes on: from its event loop, or better from threads."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Protocol

from duemq.model.errors import Unavailable
from duemq.model.ids import IdCodec
from duemq.storage.delay_file import Part

_OPEN_FILES = 16
_PARTS = 4  # some megabytes


class OpenFile(Protocol):
    """What is read of a file of any kind. See `DelayFile`."""

    def rows(self, keys: Iterable[bytes], *, payload: bool = True) -> dict[bytes, bytes]: ...
    def groups(self, key: bytes) -> range: ...
    def parts(self, after: bytes = b"") -> Iterator[Part]: ...


class FarFile(Protocol):
    """A file in the table; equal to another one only if that has the same content."""

    def __hash__(self) -> int: ...
    def open(self, folder: Path, ids: IdCodec | None) -> OpenFile: ...


class _Open(NamedTuple):
    content: OpenFile
    lock: Lock


class _Kept(NamedTuple):
    """A part of a file, and above which key it was read. Without keys: the file has none there."""

    after: bytes
    keys: Sequence[bytes]
    rows: Sequence[bytes]


class FarReader:
    """Some of a shard's files open, and the parts read last. All methods block and may be called from any thread.

    They raise DamagedFile, also for a file that has left the table meanwhile: ask `FarFiles.version` then. Files that
    nobody reads any more close themselves.
    """

    def __init__(self, folder: Path, ids: IdCodec | None = None) -> None:
        """`ids`: issues the ids of messages in adopted files."""
        self._folder, self._ids = folder, ids
        self._lock = Lock()
        self._open: OrderedDict[FarFile, _Open] = OrderedDict()
        self._parts: OrderedDict[FarFile, _Kept] = OrderedDict()
        self._closed = False

    def rows(self, wanted: Iterable[tuple[FarFile, Sequence[bytes]]], *, payload: bool = True) -> dict[bytes, bytes]:
        """Of the keys given for each file those that are in it, dropped or not, with their rows. Without `payload` they
        end before it, which takes a third of the time."""
        found: dict[bytes, bytes] = {}
        for file, keys in wanted:
            content, lock = self._opened(file)
            with lock:
                found.update(content.rows(keys, payload=payload))
        return found

    def rows_in_order(
        self, wanted: Sequence[tuple[bytes, Sequence[FarFile]]], most: int, *, payload: bool = True
    ) -> tuple[dict[bytes, bytes], int, int]:
        """As `rows`, for the first of these keys, each with the files that may hold it, for which at most so many row
        groups have to be read, but one key at least; with how many keys that were, and how many groups."""
        groups: set[tuple[FarFile, int]] = set()
        by_file: dict[FarFile, list[bytes]] = {}
        count = 0
        for key, files in wanted:
            more = {(file, group) for file in files for group in self._opened(file).content.groups(key)}
            if count and len(groups | more) > most:
                break
            groups |= more
            count += 1
            for file in files:
                by_file.setdefault(file, []).append(key)
        return self.rows(by_file.items(), payload=payload), count, len(groups)

    def has_part(self, file: FarFile, after: bytes) -> bool:
        """Whether `part` would not have to read."""
        with self._lock:
            return self._kept(file, after) is not None

    def part(self, file: FarFile, after: bytes, count: int) -> Part | None:
        """Up to `count` messages of a file above a key, dropped or not; None at its end."""
        with self._lock:
            kept = self._kept(file, after)
        if kept is None:
            content, lock = self._opened(file)
            with lock:
                read = next(content.parts(after), ((), ()))
            kept = _Kept(after, *read)
            with self._lock:
                self._parts[file] = kept
                self._parts.move_to_end(file)
                if len(self._parts) > _PARTS:
                    self._parts.popitem(last=False)
        if not kept.keys:
            return None
        at = bisect_right(kept.keys, after)
        return kept.keys[at : at + count], kept.rows[at : at + count]

    def _kept(self, file: FarFile, after: bytes) -> _Kept | None:
        kept = self._parts.get(file)
        if kept is None or after < kept.after or (kept.keys and after >= kept.keys[-1]):
            return None
        return kept

    def _opened(self, file: FarFile) -> _Open:
        with self._lock:
            if self._closed:
                raise Unavailable("the store is closed")
            if (known := self._open.get(file)) is not None:
                self._open.move_to_end(file)
                return known
        fresh = _Open(file.open(self._folder, self._ids), Lock())
        with self._lock:
            known = self._open.setdefault(file, fresh)
            if len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)
            return known

    def forget(self, files: Iterable[FarFile]) -> None:
        """Files that leave the table."""
        with self._lock:
            for file in files:
                self._open.pop(file, None)
                self._parts.pop(file, None)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._open.clear()
            self._parts.clear()
