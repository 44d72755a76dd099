"""The sealed windows of a shard: which delay files there are, and what of them is pending.

A sealed message has no row in RocksDB: it is pending unless its key is among the `dropped` ones (cancelled, moved or
dead since), until its window is loaded. Messages that came for the window after it was sealed are rows like others.
The table of files is kept in the store itself, so that it changes in one batch with the rows it speaks of.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from duemq.model.foreign import translated
from duemq.model.key import due_of, last_key_at
from duemq.storage.delay_file import About, DelayFile
from duemq.storage.rows import FAR, U32, U64, WINDOW_MS, window_of

FOLDER = "far"
_OPEN_FILES = 16


@dataclass(frozen=True, slots=True)
class Sealed:
    """A delay file in the table. `number` tells the files of a window apart."""

    about: About
    number: int

    @property
    def row(self) -> bytes:
        """Its key in the store."""
        return FAR + U64.pack(self.about.window) + U32.pack(self.number)

    @property
    def name(self) -> str:
        """Its path below the shard's folder."""
        return self.name_of(self.about.window, self.number)

    @staticmethod
    def name_of(window: int, number: int) -> str:
        return f"{FOLDER}/{window}/{number:06d}.parquet"


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove those of these folders that hold nothing."""
    for folder in folders:
        with suppress(OSError):  # it holds something, or is gone
            folder.rmdir()


class FarFiles:
    """The table of one shard, as it is in the store, with some of the files open."""

    def __init__(self, folder: Path, rows: Iterable[tuple[bytes, bytes]], loading: Iterable[int]) -> None:
        """`loading`: windows that a process before this one was loading when it ended."""
        self.folder, self.loading = folder, set(loading)
        self._windows: dict[int, list[Sealed]] = {}
        self.first: int | None = None
        """The start of the earliest sealed window; every cycle asks."""
        self._dropped: Counter[int] = Counter()
        self._open: OrderedDict[str, DelayFile] = OrderedDict()
        for key, raw in rows:
            self.add(Sealed(About.decode(raw), U32.unpack_from(key, U64.size)[0]))
        self._tidy()

    def _tidy(self) -> None:
        """Remove what a crash left: files that never came into the table, or have left it."""
        known = set(self.names())
        with translated(self.folder):
            for path in (self.folder / FOLDER).glob("**/*"):
                if path.is_file() and str(path.relative_to(self.folder)) not in known:
                    path.unlink()
            remove_empty((self.folder / FOLDER).glob("*/"))

    def __bool__(self) -> bool:
        return bool(self._windows)

    def windows(self) -> list[int]:
        """The starts (ms) of those that have files, earliest first."""
        return sorted(self._windows)

    def pending(self, window: int) -> int:
        """About how many messages of a window are pending in files."""
        return sum(sealed.about.rows for sealed in self.of(window)) - self._dropped[window]

    def drop(self, key: bytes) -> None:
        """A message that may be in a file is pending no more."""
        self._dropped[window_of(due_of(key))] += 1

    def next_after(self, key: bytes) -> int | None:
        """The first sealed window with keys above this one."""
        return next((window for window in self.windows() if last_key_at(window + WINDOW_MS - 1) > key), None)

    def names(self) -> list[str]:
        """The paths of all files, below the shard's folder."""
        return [sealed.name for files in self._windows.values() for sealed in files]

    def of(self, window: int) -> list[Sealed]:
        return self._windows.get(window, [])

    def covers(self, key: bytes) -> bool:
        """Whether this message may be in a file."""
        return window_of(due_of(key)) in self._windows

    def add(self, sealed: Sealed) -> None:
        window = sealed.about.window
        self._windows.setdefault(window, []).append(sealed)
        self.first = window if self.first is None else min(self.first, window)

    def forget(self, window: int) -> list[Path]:
        """Take a window out of the table; the paths of its files."""
        self.loading.discard(window)
        del self._dropped[window]
        paths = [self.folder / sealed.name for sealed in self._windows.pop(window, [])]
        self.first = min(self._windows, default=None)
        for path in paths:
            if (known := self._open.pop(str(path), None)) is not None:
                known.close()
        return paths

    def rows(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The rows of those keys that are in a file, dropped or not. Blocks. Raises CorruptStore."""
        by_window: defaultdict[int, list[bytes]] = defaultdict(list)
        for key in keys:
            by_window[window_of(due_of(key))].append(key)
        found: dict[bytes, bytes] = {}
        for window, wanted in by_window.items():
            for sealed in self.of(window):
                found.update(self.open(sealed).rows(wanted))
        return found

    def open(self, sealed: Sealed) -> DelayFile:
        path = self.folder / sealed.name
        known = self._open.get(str(path))
        if known is None:
            known = self._open[str(path)] = DelayFile(path)
            if len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(str(path))
        return known

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()
