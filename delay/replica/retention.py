"""Forgets history: delivered rows, answers and names, one 30-minute window at a time.

The history is no longer needed. So after a crash between two steps, the next purge drops the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from duemq.model.failpoint import Failpoint, no_failpoint
from duemq.model.messages.key import KEY_BYTES, due_of, first_key_at
from duemq.model.messages.row import first_key_of, name_of
from duemq.model.timing import WINDOW_MS, window_of
from duemq.storage.keyspace import APPLIED, CURSOR, ENDED, ENDED_IN, MOVED, NAME, NAME_DUE, ROW, U64, WHEN
from duemq.storage.shard.records import IMPORT_STATES, IMPORTED, ImportEvent
from duemq.storage.shard.store import ShardStore

_PART = 1_000  # takes a few milliseconds


def horizon_for(cursor: bytes, cutoff_ms: int, last_ends: Mapping[int, int]) -> int:
    """The start (ms) of the first window in which a message may have ended after the cutoff, or may still end.

    `last_ends`: see `ShardStore`. If a window ended late, because the service was down when it was due, it is kept for
    the full retention after that end, and so are the windows after it.
    """
    window = window_of(max(min(cutoff_ms, due_of(cursor)), 0))
    return min((late for late, at in last_ends.items() if late < window and at > cutoff_ms), default=window)


def latest_ends(last_ends: Mapping[int, int], windows: Iterable[int], at: int) -> dict[int, int]:
    """When (ms) the last message in each of these windows ended, including messages that end now, at `at` ms.

    `at` may be before an earlier end, because the clock can go back.
    """
    return {window: max(at, last_ends.get(window, at)) for window in windows}


def has_history(store: ShardStore, horizon: int) -> bool:
    """Whether there is history below the horizon (ms) that has not been dropped yet."""
    return store.holds(ROW, 0, horizon) or store.holds(ENDED, 0, horizon)


def has_ends(store: ShardStore, end_horizon: int) -> bool:
    """Whether messages that were cancelled or dead-lettered before this time (ms) are still stored."""
    return next(store.range(ENDED_IN, ENDED_IN + U64.pack(end_horizon)), None) is not None


def purge_before(
    store: ShardStore, horizon: int, end_horizon: int, failpoint: Failpoint = no_failpoint
) -> Iterator[None]:
    """Drop the history of messages that were due before the window that starts at `horizon` ms, in parts; and the
    history of messages that were cancelled or dead-lettered before `end_horizon` ms, whenever they were due.

    For a moved message its current due time is used. A name is free again once its message is forgotten. Runs in the
    master's event loop, where other tasks may run at each `yield`: a part deletes the rows it has read before the next
    `yield`, so that no cycle writes in between (a redrive gives an old message a new key).
    """
    end = first_key_at(horizon)
    yield from _purge_ended(store, end_horizon)
    failpoint("ends")
    yield from _purge_names(store, horizon)
    failpoint("names")
    yield from _purge_moves(store, end)
    failpoint("moves")
    yield from _purge_imports(store, horizon)
    failpoint("imports")
    for prefix in (ROW, ENDED, CURSOR):
        store.drop(prefix, b"", end)
        failpoint("range")
    store.index.purge(horizon)
    failpoint("runs")
    store.purge_ends(horizon)
    yield
    # Compare cycle numbers, not times: the clock can go back and make a cycle seem older than the horizon.
    first_number = next((WHEN.unpack(when)[0] for _, when in store.each(CURSOR, end)), 0)
    boundary = None
    for count, (applied, when) in enumerate(store.each(APPLIED)):
        if WHEN.unpack(when)[0] >= first_number:
            break
        boundary = applied  # kept: all commands below it were applied before the cursor reached the horizon
        if count % _PART == _PART - 1:
            yield
    if boundary is not None:
        store.drop(APPLIED, b"", boundary)
    failpoint("index")


def _purge_ended(store: ShardStore, end_horizon: int) -> Iterator[None]:
    """Drop endings, each with its name and its move. A redriven message has no ending, or a later one."""
    start, end = ENDED_IN, ENDED_IN + U64.pack(end_horizon)
    while index := [row for row, _ in islice(store.range(start, end), _PART)]:
        deletes: list[bytes] = []
        for row in index:
            key = row[U64.size :]
            (ended,) = store.endings([key])  # one at a time, because a dead letter's ending contains its payload
            if ended is not None and not ended.row:
                continue  # its name and first key are in a delay file; it is dropped once they have been read
            deletes.append(ENDED_IN + row)
            if ended is not None and ended.at < end_horizon:
                first_key, name = first_key_of(ended.row), name_of(ended.row)
                deletes += (ENDED + key, MOVED + first_key)
                if name and (holder := store.names([name])[0]) is not None and holder[:KEY_BYTES] == first_key:
                    deletes.append(NAME + name)
        store.delete(deletes)
        start = ENDED_IN + index[-1] + b"\x00"
        yield


def _purge_names(store: ShardStore, horizon: int) -> Iterator[None]:
    start = b""
    while True:
        rows = [row for row, _ in islice(store.each(NAME_DUE, start), _PART) if U64.unpack_from(row)[0] < horizon]
        deletes = [NAME_DUE + row for row in rows]
        names = [row[U64.size :] for row in rows]
        holders = {name: holder[:KEY_BYTES] for name, holder in zip(names, store.names(names), strict=True) if holder}
        current_keys = store.current_keys(list(holders.values()))
        for (name, first_key), key in zip(holders.items(), current_keys, strict=True):
            if due_of(key or first_key) < horizon:
                deletes.append(NAME + name)
        store.delete(deletes)
        if len(rows) < _PART:
            return
        start = rows[-1]
        yield


def _purge_imports(store: ShardStore, horizon: int) -> Iterator[None]:
    """Drop the outcomes of import commands whose window has ended."""
    deletes: list[bytes] = []
    for count, one in enumerate(store.imports.all()):
        if (
            one.state,
            ImportEvent.WINDOW_PURGED,
        ) in IMPORT_STATES.steps and one.import_command.window + WINDOW_MS <= horizon:
            deletes.append(one.row[0])
            if one.state == IMPORTED:
                deletes.append(one.content[0])
        if count % _PART == _PART - 1:
            yield
    store.delete(deletes)


def _purge_moves(store: ShardStore, end: bytes) -> Iterator[None]:
    """Drop moves, except those of messages that are still stored, however old their first due time is."""
    start = b""
    while True:
        moves = [(first, now) for first, now in islice(store.each(MOVED, start), _PART) if first < end]
        store.delete([MOVED + first for first, now in moves if now < end])
        if len(moves) < _PART:
            return
        start = moves[-1][0] + b"\x00"
        yield
