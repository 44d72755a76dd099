"""The sealed windows of a shard: their delay files, and which of the messages in them are pending.

A sealed message has no row in RocksDB. Until its window is loaded, it is pending unless its key is among the `dropped`
keys (cancelled, moved or dead-lettered since). Messages scheduled into the window after the seal are ordinary rows. The
catalog is in the store itself, so that it changes in one batch with the affected rows. A key is dropped only if it is
in a file, so the number of dropped keys shows when a window is empty. While a window is being loaded, this does not
hold: then its rows are both in RocksDB and in files.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from duemq.model.errors import DamagedFile
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import due_of, last_key_at, offset_of
from duemq.model.rocksdb_errors import translate_errors
from duemq.model.timing import WINDOW_MS, window_of
from duemq.storage.delay_files.about import About
from duemq.storage.delay_files.reader import DelayFileReader
from duemq.storage.keyspace import DELAY_FILE, DROPS, ROWLESS_COUNT, U32, U64

if TYPE_CHECKING:
    from duemq.storage.delay_files.imported_file import ImportedFile
    from duemq.storage.delay_files.sealed_file import DelayFile

FOLDER = "far"
_IMPORTED_NAME = re.compile(r"a(\d+)\.parquet")


@dataclass(frozen=True, slots=True)
class CatalogFile:
    """A delay file in the catalog. `number` distinguishes the sealed files of a window, and may be reused after a file
    was removed. An imported file has the offset of its command, and the number 0."""

    about: About
    number: int = 0

    @property
    def row(self) -> bytes:
        """The file's key in the store."""
        key = DELAY_FILE + U64.pack(self.about.window) + U32.pack(self.number)
        return key if self.about.offset is None else key + U64.pack(self.about.offset)

    @property
    def name(self) -> str:
        """The file's path below the shard's folder."""
        if self.about.offset is not None:
            return self.imported_name(self.about.window, self.about.offset)
        return self.name_of(self.about.window, self.number)

    @staticmethod
    def name_of(window: int, number: int) -> str:
        return f"{FOLDER}/{window}/{number:06d}.parquet"

    @staticmethod
    def imported_name(window: int, offset: int) -> str:
        return f"{FOLDER}/{window}/a{offset:012d}.parquet"

    def open(self, folder: Path, ids: IdCodec | None) -> DelayFile | ImportedFile:
        """Open the file, in the shard's folder, for reading. Blocks. Raises DamagedFile, also if another file has its
        name.

        `ids`: issues the ids of imported messages.
        """
        return open_file(folder / self.name, self.about, ids)


def open_file(path: Path, about: About, ids: IdCodec | None) -> DelayFile | ImportedFile:
    """See `CatalogFile.open`."""
    from duemq.storage.delay_files.imported_file import ImportedFile  # pyarrow: see about.py
    from duemq.storage.delay_files.sealed_file import DelayFile  # pyarrow: see about.py

    if about.offset is not None:
        assert ids is not None
        return ImportedFile(path, about, ids)
    file = DelayFile(path)
    if file.about != about:
        file.close()
        raise DamagedFile(f"delay file {path} is not the one that was sealed: its content differs", str(path))
    return file


class DelayFileCatalog:
    """The catalog of one shard's delay files in the store, with a reader for these files."""

    def __init__(
        self,
        folder: Path,
        rows: Iterable[tuple[bytes, bytes]],
        dropped: Iterable[tuple[int, int]],
        loading: Iterable[int],
        ids: IdCodec | None = None,
        may_be_imported: Callable[[int], bool] = lambda offset: False,
        rowless: Iterable[tuple[int, int]] = (),
    ) -> None:
        """`dropped`: the number of dropped keys per window; `rowless`: how many of them were cancelled without their
        rows.

        `loading`: windows whose rows may also be in RocksDB.

        `may_be_imported`: whether to keep the file of an import command, given by its offset, even if it is not in the
        catalog.
        """
        self.folder, self.loading, self.reader = folder, set(loading), DelayFileReader(folder, ids)
        self.version = 0
        """Changes with the catalog: a key that was in no file may be in one now, and files may have been removed."""
        self._windows: dict[int, list[CatalogFile]] = {}
        self._starts: list[int] = []
        self._rows: Counter[int] = Counter()
        self._drops, self._rowless = Counter(dict(dropped)), +Counter(dict(rowless))
        self.first: int | None = None
        """The start of the earliest sealed window. An attribute, because every cycle reads it."""
        for key, raw in rows:
            self.add(CatalogFile(About.decode(raw), U32.unpack_from(key, U64.size)[0]))
        self._tidy(may_be_imported)

    def _tidy(self, may_be_imported: Callable[[int], bool]) -> None:
        """Remove files that a crash left: those that are not in the catalog yet, or no longer."""
        names = set(self.names())
        with translate_errors(self.folder):
            for path in sorted((self.folder / FOLDER).glob("**/*"), reverse=True):
                if path.is_dir():
                    with suppress(OSError):  # the folder is not empty
                        path.rmdir()
                elif str(path.relative_to(self.folder)) not in names:
                    match = _IMPORTED_NAME.fullmatch(path.name)
                    if match is None or not may_be_imported(int(match[1])):
                        path.unlink()

    def __bool__(self) -> bool:
        return bool(self._windows)

    # --- files ----------------------------------------------------------------------------------------------------

    def windows(self) -> Sequence[int]:
        """The starts (ms) of windows with files, the earliest first."""
        return self._starts

    def of(self, window: int) -> list[CatalogFile]:
        return self._windows.get(window, [])

    def all(self) -> list[CatalogFile]:
        # Copied, because this also runs in threads, while a cycle may add an imported file.
        return [file for files in list(self._windows.values()) for file in list(files)]

    def file_counts(self, least: int) -> dict[int, int]:
        """For each window with at least `least` files, the number of its files."""
        return {window: len(files) for window, files in self._windows.items() if len(files) >= least}

    def names(self) -> list[str]:
        """The paths of all files, below the shard's folder."""
        return [file.name for file in self.all()]

    def next_number(self, window: int) -> int:
        """The number for the next file in a window."""
        return max((file.number for file in self.of(window)), default=0) + 1

    def next_after(self, key: bytes) -> int | None:
        """The first sealed window that may have keys above this one."""
        at = bisect_left(self._starts, window_of(due_of(key)))
        if at < len(self._starts) and last_key_at(self._starts[at] + WINDOW_MS - 1) <= key:
            at += 1
        return self._starts[at] if at < len(self._starts) else None

    def covers(self, key: bytes) -> bool:
        """Whether this message may be in a file."""
        return window_of(due_of(key)) in self._windows

    def files_of(self, key: bytes) -> list[CatalogFile]:
        """The files that may contain a message."""
        return [file for file in self.of(window_of(due_of(key))) if file.about.offset in (None, offset_of(key))]

    def by_file(self, keys: Iterable[bytes]) -> list[tuple[CatalogFile, list[bytes]]]:
        """The files that may contain these messages, each with the messages that it may contain."""
        keys_by_file: defaultdict[CatalogFile, list[bytes]] = defaultdict(list)
        for key in keys:
            for file in self.files_of(key):
                keys_by_file[file].append(key)
        return list(keys_by_file.items())

    # --- counts of messages ---------------------------------------------------------------------------------------

    @property
    def messages(self) -> int:
        """The number of pending messages in all files."""
        return self._rows.total() - self._drops.total()

    def rows(self, window: int) -> int:
        """The number of messages in a window's files, dropped or not."""
        return self._rows.get(window, 0)

    def drop_count(self, window: int) -> int:
        """The number of messages in a window's files that are no longer pending."""
        return self._drops.get(window, 0)

    def drop_counts(self) -> Mapping[int, int]:
        """`drop_count` of each window whose count is not 0."""
        return self._drops

    def pending(self, window: int) -> int:
        return self._rows.get(window, 0) - self._drops.get(window, 0)

    def rowless(self, window: int) -> int:
        """How many messages in a window's files were cancelled and have endings without rows."""
        return self._rowless.get(window, 0)

    def unread(self) -> int:
        """The sum of `rowless` over all windows."""
        return self._rowless.total()

    def rowless_counts(self) -> Counter[int]:
        """`rowless` of each window whose count is not 0."""
        return self._rowless

    # --- changes, each together with a batch of the store ---------------------------------------------------------

    def drop(self, keys: Iterable[bytes], rowless: Iterable[bytes] = ()) -> list[tuple[bytes, bytes]]:
        """Mark messages in files as no longer pending. Returns the store's rows with the new counts. `rowless`: those
        of the keys that are cancelled without their rows."""
        return [
            *_count(keys, self._drops.update, self._drops, DROPS),
            *_count(rowless, self._rowless.update, self._rowless, ROWLESS_COUNT),
        ]

    def complete(self, keys: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
        """Record that endings now have their rows. Returns the store's rows with the new counts of endings without
        rows."""
        counts = _count(keys, self._rowless.subtract, self._rowless, ROWLESS_COUNT)
        self._rowless = +self._rowless
        return counts

    def add(self, file: CatalogFile, dropped: int = 0) -> None:
        """Add a file. `dropped`: how many of its messages are no longer pending."""
        window = file.about.window
        if window not in self._windows:
            self._windows[window] = []
            insort(self._starts, window)
        self._windows[window].append(file)
        self._rows[window] += file.about.rows
        if dropped:
            self._drops[window] += dropped
        self._on_change()

    def forget(self, window: int) -> list[Path]:
        """Remove a window from the catalog. Returns the paths of its files."""
        self.loading.discard(window)
        files = self._windows.pop(window, [])
        if files:
            self._starts.remove(window)
        self.reader.forget(files)
        del self._rows[window]
        del self._drops[window]
        self._on_change()
        return [self.folder / file.name for file in files]

    def replace(self, files: Sequence[CatalogFile], new_file: CatalogFile) -> list[Path]:
        """Replace files in a window by one with the same messages. Returns the paths of the old files."""
        old_files = set(files)
        of_window = self._windows[new_file.about.window]
        self._windows[new_file.about.window] = [file for file in of_window if file not in old_files] + [new_file]
        self.reader.forget(files)
        self._on_change()
        return [self.folder / file.name for file in files]

    def _on_change(self) -> None:
        self.version += 1
        self.first = self._starts[0] if self._starts else None


def _count(
    keys: Iterable[bytes], change: Callable[[Counter[int]], None], counts: Counter[int], prefix: bytes
) -> list[tuple[bytes, bytes]]:
    """Change the counts of the keys' windows. Returns the store's rows with the new counts."""
    windows = Counter(window_of(due_of(key)) for key in keys)
    change(windows)
    return [(prefix + U64.pack(window), U64.pack(counts[window])) for window in windows]


def remove(files: Iterable[Path]) -> None:
    """Remove files that are no longer in the catalog, and the empty folders of their windows. Blocks."""
    for path in files:
        with translate_errors(path):
            path.unlink(missing_ok=True)
            with suppress(OSError):  # the window has another file
                path.parent.rmdir()
