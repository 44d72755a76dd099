"""Counts the requests without a key in the last minute. Once there is a key, such requests are refused."""

from __future__ import annotations

from typing import Final

_SLOT_MS: Final = 5_000
_SLOTS: Final = 12


class KeylessRequests:
    """Times are epoch ms."""

    def __init__(self) -> None:
        self._counts = dict[int, int]()

    def add(self, now: int) -> None:
        slot = now // _SLOT_MS
        if slot not in self._counts and len(self._counts) > _SLOTS:
            self._counts = {past: count for past, count in self._counts.items() if slot - _SLOTS <= past <= slot}
        self._counts[slot] = self._counts.get(slot, 0) + 1

    def count(self, now: int) -> int:
        """The number of requests in the last minute, accurate to five seconds."""
        slot = now // _SLOT_MS
        return sum(count for past, count in self._counts.items() if slot - _SLOTS < past <= slot)
