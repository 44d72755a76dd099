"""Moves windows out of RocksDB into delay files, and back: the steps that change a shard's store.

Another process does the work (`tiering_process.py`), on a checkpoint or on files, while a `Journal` records the shard's
changes to the windows. Each transition ends with one batch per window, so that after a crash a row is still either in
RocksDB or in a file:

seal:    make a checkpoint -> write the files, sync and rename them -> batch: delete the rows, add the file to the
         catalog -> flush
load:    list the dropped keys -> set a marker, flush -> write an SST -> ingest it -> batch: delete the files from the
         catalog, the dropped keys and the marker -> flush -> remove the files
rewrite: list the dropped keys -> write a new file, sync and rename it -> batch: delete the old files from the catalog,
         with their dropped keys, and add the new file -> flush -> remove the old files. There is no new file if no rows
         are left
join:    write a new file with all messages of some files, sync and rename it -> batch: delete these files from the
         catalog, and add the new file -> flush -> remove the old files. The new file also contains the dropped
         messages, so nothing else changes

Between the ingestion and the last batch of a load, the rows are both in RocksDB and in files. The rows are the same,
and readers check the dropped keys first. A load that is repeated after a crash (the marker shows this) deletes the rows
of all dropped keys, because the earlier SST may have restored them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from rocksdict import WriteBatch

from duemq.model.errors import CorruptStore
from duemq.model.messages.key import first_key_at
from duemq.model.timing import WINDOW_MS
from duemq.storage.delay_files.catalog import CatalogFile
from duemq.storage.keyspace import DROPPED, DROPS, LOADING, ROW, ROWLESS_COUNT, U64
from duemq.storage.shard.change_journal import WindowChanges
from duemq.storage.shard.store import ShardStore


def bounds(prefix: bytes, window: int, end: int | None = None) -> tuple[bytes, bytes]:
    """The range of a window's rows of one kind, or of all windows from this one to before `end`."""
    return prefix + first_key_at(window), prefix + first_key_at(end or window + WINDOW_MS)


def commit_seal(store: ShardStore, file: CatalogFile, changes: WindowChanges, present_keys: Collection[bytes]) -> None:
    """Commit that the file now has the checkpoint's rows of this window. Flush afterwards.

    `present_keys`: the journal's early keys that are in the file.
    """
    window = file.about.window
    batch = WriteBatch(raw_mode=True)
    batch.delete_range(*bounds(ROW, window))
    for key, row in changes.placed.items():
        if key not in present_keys:
            batch.put(ROW + key, row)
    dropped_keys = changes.inside(changes.removed, present_keys)
    for key in dropped_keys:
        batch.put(DROPPED + key, b"")
    batch.put(DROPS + U64.pack(window), U64.pack(store.delay_files.drop_count(window) + len(dropped_keys)))
    batch.put(file.row, file.about.encode())
    store.change(batch)
    store.delay_files.add(file, len(dropped_keys))


def begin_load(store: ShardStore, windows: Collection[int]) -> None:
    """Record that RocksDB may contain rows of the windows' files from now on. Flush before it does."""
    batch = WriteBatch(raw_mode=True)
    for window in windows:
        batch.put(LOADING + U64.pack(window), b"")
    store.change(batch)
    store.delay_files.loading.update(windows)


def commit_load(store: ShardStore, window: int, changes: WindowChanges, *, again: bool) -> list[Path]:
    """Commit that RocksDB now has the window's rows. Flush before the window's files are removed. Returns their paths.

    `again`: an earlier load was interrupted.
    """
    batch = WriteBatch(raw_mode=True)
    dropped_keys = [key for key, _ in store.range(*bounds(DROPPED, window))] if again else changes.dropped
    for key in dropped_keys:
        batch.delete(ROW + key)
    _forget(store, window, batch)
    batch.delete(LOADING + U64.pack(window))
    store.change(batch)
    return store.delay_files.forget(window)


def commit_rewrite(
    store: ShardStore, window: int, file: CatalogFile | None, changes: WindowChanges, present_keys: Collection[bytes]
) -> list[Path]:
    """Commit that `file`, if any, now has the remaining rows in the window's files. Flush before the old files are
    removed. Returns their paths.

    `present_keys`: the journal's early keys that are in the new file. Without a new file, the old files must have no
    rows left.
    """
    batch = WriteBatch(raw_mode=True)
    _forget(store, window, batch)
    dropped_keys: list[bytes] = []
    if file is not None:
        dropped_keys = changes.inside(changes.dropped, present_keys)
        for key in dropped_keys:
            batch.put(DROPPED + key, b"")
        batch.put(DROPS + U64.pack(window), U64.pack(len(dropped_keys)))
        batch.put(file.row, file.about.encode())
    store.change(batch)
    paths = store.delay_files.forget(window)
    if file is not None:
        store.delay_files.add(file, len(dropped_keys))
    return paths


def commit_join(store: ShardStore, files: Sequence[CatalogFile], new_file: CatalogFile) -> list[Path]:
    """Commit that `new_file` now has the rows of these files in its window. Flush before the old files are removed.
    Returns their paths."""
    if sum(file.about.rows for file in files) != new_file.about.rows:
        raise CorruptStore(
            f"{store.path / new_file.name} has {new_file.about.rows} messages, and not those of its files"
        )
    batch = WriteBatch(raw_mode=True)
    for file in files:
        batch.delete(file.row)
    batch.put(new_file.row, new_file.about.encode())
    store.change(batch)
    return store.delay_files.replace(files, new_file)


def _forget(store: ShardStore, window: int, batch: WriteBatch) -> None:
    if store.delay_files.rowless(window):
        raise RuntimeError(f"window {window} would lose the records of messages that were cancelled in its files")
    batch.delete_range(*bounds(DROPPED, window))
    batch.delete(DROPS + U64.pack(window))
    batch.delete(ROWLESS_COUNT + U64.pack(window))
    for file in store.delay_files.of(window):
        batch.delete(file.row)
