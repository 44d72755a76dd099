"""Moving windows out of RocksDB into delay files, and back: the steps that change a shard's store.

The work itself is another process's (`tiering_process.py`), on a checkpoint or on files; meanwhile a `Journal` notes
what the shard does to the windows. Each way ends in one batch per window, so that after a crash a row is in RocksDB or
in a file:

seal:    checkpoint -> files written, synced, named -> batch: rows out, file into the table -> flush
load:    dropped keys -> SST written -> marker, flush -> ingested -> batch: table, dropped keys and marker out -> flush
         -> files unlinked
rewrite: dropped keys -> new file written, synced, named -> batch: old files and their dropped keys out of the table,
         new file in -> flush -> old files unlinked; where nothing is left, without the new file
join:    new file with all messages of some files written, synced, named -> batch: these files out of the table, the
         new one in -> flush -> old files unlinked. Dropped messages stay in the file, so nothing else changes

Between the ingestion and the last batch of a load the rows are in both places. They are the same rows, and readers ask
for dropped keys first. A load that is begun again after a crash (its marker tells) takes the rows of all dropped keys
out: an SST of the time before may have brought them back.
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
    """The range of a window's rows of one kind, or of all windows up to where the one before `end` ends."""
    return prefix + first_key_at(window), prefix + first_key_at(end or window + WINDOW_MS)


def commit_seal(store: ShardStore, file: CatalogFile, changes: WindowChanges, present_keys: Collection[bytes]) -> None:
    """From now on the file holds what the checkpoint held of this window. To be flushed.

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
    """Note that rows of the windows' files may be in RocksDB from now on. To be flushed before they are."""
    batch = WriteBatch(raw_mode=True)
    for window in windows:
        batch.put(LOADING + U64.pack(window), b"")
    store.change(batch)
    store.delay_files.loading.update(windows)


def commit_load(store: ShardStore, window: int, changes: WindowChanges, *, again: bool) -> list[Path]:
    """From now on RocksDB holds the window. To be flushed before these files are removed.

    `again`: an earlier load was cut short.
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
    """From now on `file`, if any, holds what is left of the window's files. To be flushed before these are removed.

    `present_keys`: the journal's early keys that are in the new file. Without a new file, nothing may be left of the
    old ones.
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
    """From now on `new_file` holds what these files of its window held. To be flushed before they are removed."""
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
        raise RuntimeError(f"window {window} would lose what is kept of messages that were cancelled in its files")
    batch.delete_range(*bounds(DROPPED, window))
    batch.delete(DROPS + U64.pack(window))
    batch.delete(ROWLESS_COUNT + U64.pack(window))
    for file in store.delay_files.of(window):
        batch.delete(file.row)
