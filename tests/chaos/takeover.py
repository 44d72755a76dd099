"""How long a shard stood still around a fault, from the broker's timestamps of its deliveries."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

_BEFORE_MS = 100


class Pause(NamedTuple):
    """The longest time without a delivery around a fault. Both in ms; `after_fault`: from the fault to its end."""

    gap: int
    after_fault: int


def longest_pause(stamps: Sequence[int], fault_ms: int, until_ms: int) -> Pause:
    """Of the deliveries at `stamps` (epoch ms, ascending), between just before the fault and `until_ms`.

    A delivery that was on its way when its node died does not count as the next master's: the pause that matters is
    the longest one that ends after the fault. Raises ValueError where nothing was delivered after it.
    """
    first = max(bisect_left(stamps, fault_ms - _BEFORE_MS) - 1, 0)
    pairs = [
        Pause(later - earlier, later - fault_ms)
        for earlier, later in zip(stamps[first:], stamps[first + 1 :], strict=False)
        if fault_ms < later and earlier <= until_ms
    ]
    if not pairs:
        raise ValueError(f"nothing was delivered after {fault_ms}")
    return max(pairs)
