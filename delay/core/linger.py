"""How long a shard lets commands and due messages gather before its next cycle."""

from __future__ import annotations

from typing import NamedTuple

# Of the CPU that a cycle usually takes: the rest after it, for whom somebody waits and for all others.
_FOR_WAITERS, _FOR_ALL = 0.5, 2.0
_MAX_S = 0.05
_WEIGHT = 1 / 8  # of the last cycle in what one usually takes
_SPIKE, _SPIKE_S = 4.0, 0.001  # a cycle that took more than so much longer than usual met a burst


class NextStart(NamedTuple):
    """When the next cycle may start (s): for somebody who waits for an answer, and for all others."""

    for_waiters: float
    for_all: float


class Linger:
    """The lingering of one master. Times in s, of any clock that goes on steadily.

    Cycles have a price of their own, so that they should widen where there is much to do, or where the process is busy,
    instead of multiplying. So the rest after a cycle follows the CPU that one takes (ADR 39). The time for which it
    waits for its log is a rest, too.
    """

    def __init__(self, least_s: float = 0.0) -> None:
        """`least_s`: between the starts of two cycles, unless somebody waits."""
        self._least_s = least_s
        self._usual_s = 0.0

    def next_start(self, started: float, ended: float, cpu_s: float, full: bool) -> NextStart:
        """When the next cycle may start after this one. `cpu_s`: what this thread worked meanwhile, on whatever.

        A backlog (`full`) does not wait.
        """
        usual = self._usual_s
        usual += (min(cpu_s, _SPIKE * usual + _SPIKE_S) - usual) * _WEIGHT
        self._usual_s = usual
        if full:
            return NextStart(ended, ended)
        for_waiters = ended + min(_FOR_WAITERS * usual, _MAX_S)
        return NextStart(for_waiters, max(ended + min(_FOR_ALL * usual, _MAX_S), started + self._least_s))
