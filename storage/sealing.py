"""Moving a window out of RocksDB into a delay file, and back: the steps that change a shard's store.

The work itself is another process's (storage/far_process.py), on a checkpoint; meanwhile a `Journal` notes what the
shard does to the window. Each way ends in one batch, so that after a crash a row is in RocksDB or in a file:

seal: checkpoint -> file written, synced, named -> batch: rows out, file into the table -> flush
load: dropped keys -> SST written -> marker, flush -> ingested -> batch: table, dropped keys and marker out -> flush
      -> file unlinked

Between the ingestion and the last batch of a load the rows are in both places. They are the same rows, and readers ask
for dropped keys first. A load that is begun again after a crash (its marker tells) takes the rows of all dropped keys
out: an SST of the time before may have brought them back.
"""

from __future__ import annotations

from pathlib import Path

from rocksdict import WriteBatch

from duemq.model.key import first_key_at
from duemq.storage.far import Sealed
from duemq.storage.journal import Journal
from duemq.storage.rows import DROPPED, LOADING, ROW, U64, WINDOW_MS
from duemq.storage.store import ShardStore


def bounds(prefix: bytes, window: int) -> tuple[bytes, bytes]:
    """The range of a window's rows of one kind."""
    return prefix + first_key_at(window), prefix + first_key_at(window + WINDOW_MS)


def commit_seal(store: ShardStore, sealed: Sealed, journal: Journal) -> None:
    """From now on the file holds what the checkpoint held of this window. To be flushed."""
    inside = store.far.open(sealed).rows(list(journal.placed))
    batch = WriteBatch(raw_mode=True)
    batch.delete_range(*bounds(ROW, sealed.about.window))
    for key, row in journal.placed.items():
        if key not in inside:
            batch.put(ROW + key, row)
    for key in journal.removed:
        batch.put(DROPPED + key, b"")
    batch.put(sealed.row, sealed.about.encode())
    store.change(batch)
    store.far.add(sealed)


def begin_load(store: ShardStore, window: int) -> None:
    """Note that rows of the window's files may be in RocksDB from now on. To be flushed before they are."""
    batch = WriteBatch(raw_mode=True)
    batch.put(LOADING + U64.pack(window), b"")
    store.change(batch)


def commit_load(store: ShardStore, window: int, journal: Journal, *, again: bool) -> list[Path]:
    """From now on RocksDB holds the window. To be flushed before these files are removed.

    `again`: an earlier load was cut short.
    """
    batch = WriteBatch(raw_mode=True)
    gone = [key for key, _ in store.range(*bounds(DROPPED, window))] if again else journal.removed
    for key in gone:
        batch.delete(ROW + key)
    batch.delete_range(*bounds(DROPPED, window))
    for sealed in store.far.of(window):
        batch.delete(sealed.row)
    batch.delete(LOADING + U64.pack(window))
    store.change(batch)
    return store.far.forget(window)
