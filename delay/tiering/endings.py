"""Completes the endings of messages that were cancelled in delay files.

A cancel only checks that the message is in the file. Its row is read later, and stays in the file until then (`DROPPED`
rows with ROWLESS mark it). A file leaves the table only when all endings of its window have their rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from duemq.delay.replica.prefetch import PrefetchedView
from duemq.model.errors import CorruptStore
from duemq.storage.shard.store import ShardStore

_PART = 1_000  # endings completed before other tasks run
_LATEST = 6  # the longest wait, in multiples of the rest


async def complete_windows(store: ShardStore, windows: Iterable[int]) -> None:
    """Complete all endings of these windows with their rows, including new ones, until the caller's next await. Raises
    DamagedFile."""
    windows = list(windows)
    while left := [window for window in windows if store.delay_files.rowless(window)]:
        for window in left:
            await complete_endings(store, window)


async def complete_endings(store: ShardStore, window: int) -> None:
    """Complete some endings of a window with their rows. Raises DamagedFile."""
    keys = list(islice(store.rowless_keys(window), _PART))
    if not keys:
        raise CorruptStore(f"{store.path}: endings without rows are counted in window {window}, and there are none")
    store.complete_endings(await PrefetchedView(store).read_unread(keys))


class CompletionTimer:
    """Decides when to complete endings: once no new ones have come for `rest_ms`, but within a bounded time."""

    def __init__(self, rest_ms: int) -> None:
        self._rest_ms = rest_ms
        self._count = 0
        self._first_ms = self._last_ms = 0

    def is_time(self, count: int, now: int) -> bool:
        """`count`: how many endings have no row."""
        if count > self._count:
            self._last_ms = now
            self._first_ms = self._first_ms if self._count else now
        self._count = count
        return count > 0 and (now - self._last_ms >= self._rest_ms or now - self._first_ms >= _LATEST * self._rest_ms)
