"""Forgetting what ended: delivered rows, answers and names, a whole 30-minute window at a time."""

from __future__ import annotations

from duemq.model.key import KEY_BYTES, due_of, first_key_at
from duemq.storage.rows import APPLIED, CURSOR, ENDED, MOVED, NAME, NAME_DUE, ROW, U64, WHEN, window_of
from duemq.storage.store import ShardStore

_PART = 5_000


def forget_before(store: ShardStore, cutoff_ms: int) -> int:
    """Drop the history of messages that were due in windows that ended before `cutoff_ms`. Returns that horizon (ms).

    A message that was moved counts by its current due time; a name is free again once its message is forgotten. Runs
    in a thread beside the master: it touches only rows below the cursor, which no cycle writes.
    """
    horizon = window_of(min(cutoff_ms, due_of(store.position.entry.cursor)))
    end = first_key_at(horizon)
    _forget_names(store, horizon)
    _forget_moves(store, end)
    for prefix in (ROW, ENDED, CURSOR):
        store.drop(prefix, b"", end)
    boundary = None
    for applied, when in store.each(APPLIED):
        if WHEN.unpack(when)[1] >= horizon:
            boundary = applied
            break
    if boundary is not None:
        store.drop(APPLIED, b"", boundary)
    return horizon


def _forget_names(store: ShardStore, horizon: int) -> None:
    gone: list[bytes] = []
    for row, _ in store.each(NAME_DUE):
        if U64.unpack_from(row)[0] >= horizon:
            break
        gone.append(NAME_DUE + row)
        name = row[U64.size :]
        (holder,) = store.names([name])
        if holder is not None:
            first_key = holder[:KEY_BYTES]
            current = store.moved([first_key])[0] or first_key
            if due_of(current) < horizon:
                gone.append(NAME + name)
        if len(gone) > _PART:
            store.delete(gone)
            gone.clear()
    store.delete(gone)


def _forget_moves(store: ShardStore, end: bytes) -> None:
    """Moves of messages that are still held stay, however old their first due time is."""
    gone: list[bytes] = []
    for first_key, current in store.each(MOVED):
        if first_key >= end:
            break
        if current < end:
            gone.append(MOVED + first_key)
    store.delete(gone)
