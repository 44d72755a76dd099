"""Completes the endings of messages that were cancelled in delay files: adds their rows.

A cancel only checks that the message is in the file. Its row is read later, and stays in the file until then. Such
messages are marked with `DROPPED` rows that contain ROWLESS. A file is removed from the catalog only when all endings
in its window have their rows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable

from duemq.delay.replica.prefetch import PrefetchedView
from duemq.model.errors import CorruptStore
from duemq.storage.shard.change_journal import Journal
from duemq.storage.shard.store import ShardStore

_PART = 1_000  # marks read before other tasks run
_LATEST = 6  # the longest wait, in multiples of `rest_ms`


class CompletionPass:
    """One pass through the marks in some windows, which completes the endings that it finds.

    A mark stays until its file is removed, so the cost of a pass grows with the number of all cancels in the windows.
    A pass misses marks that are made after it has passed their keys.
    """

    def __init__(self, store: ShardStore, windows: Iterable[int]) -> None:
        self._store, self._windows = store, deque(windows)
        self._after = b""  # the last key that was read in the first window

    async def step(self) -> bool:
        """Continue the pass for one part. False at the end. Raises DamagedFile."""
        store, windows = self._store, self._windows
        while windows and not store.delay_files.rowless(windows[0]):
            windows.popleft()
            self._after = b""
        if not windows:
            return False
        keys, after = store.rowless_keys(windows[0], self._after, _PART)
        if keys:
            await _complete(store, keys)
        else:
            await asyncio.sleep(0)
        self._after = after
        if not after:
            windows.popleft()
        return True


async def complete_windows(store: ShardStore, windows: Iterable[int]) -> None:
    """Add the rows to all endings in these windows. Endings that are new in the meantime are included, so that all are
    complete until the caller's next await. Raises DamagedFile."""
    windows = list(windows)
    journal = store.watch(windows)  # records the marks that the pass misses
    try:
        walk = CompletionPass(store, windows)
        while await walk.step():
            pass
        await complete_recorded(store, journal, windows)
    finally:
        store.end(journal)


async def complete_recorded(store: ShardStore, journal: Journal, windows: Collection[int]) -> None:
    """Like `complete_windows`, but without a pass: all endings had their rows when `journal` began."""
    while left := [window for window in windows if store.delay_files.rowless(window)]:
        for window in left:
            rowless = journal.windows[window].rowless
            if not rowless:
                raise CorruptStore(
                    f"{store.path}: endings without rows are counted in window {window}, and there are none"
                )
            await _complete(store, [rowless.pop() for _ in range(min(len(rowless), _PART))])


async def _complete(store: ShardStore, keys: list[bytes]) -> None:
    if rows := await PrefetchedView(store).read_unread(keys):
        store.complete_endings(rows)


class CompletionTimer:
    """Decides when to complete endings: once no new ones have come for `rest_ms`, or the first has waited six times as
    long."""

    def __init__(self, rest_ms: int) -> None:
        self._rest_ms = rest_ms
        self._count = 0
        self._first_ms = self._last_ms = 0

    def is_time(self, count: int, now: int) -> bool:
        """`count`: the number of endings without rows."""
        if count > self._count:
            self._last_ms = now
            self._first_ms = self._first_ms if self._count else now
        self._count = count
        return count > 0 and (now - self._last_ms >= self._rest_ms or now - self._first_ms >= _LATEST * self._rest_ms)
