"""How long a shard lets commands and due messages gather before its next cycle."""

from __future__ import annotations

from typing import NamedTuple

# By what a cycle usually takes: for whom somebody waits, and for all others.
_FOR_WAITERS, _FOR_ALL = 1.5, 2.0
_MAX_S = 0.05
_WEIGHT = 1 / 8  # of the last cycle in what one usually takes
_SPIKE, _SPIKE_S = 4.0, 0.001  # a cycle that took more than so much longer than usual met a slow disk, or a burst


class NextStart(NamedTuple):
    """When the next cycle may start (s): for somebody who waits for an answer, and for all others."""

    for_waiters: float
    for_all: float


class Linger:
    """The lingering of one master. Times in s, of any clock that goes on steadily.

    Cycles have a price of their own, so that they should widen where there is much to do, or where the machine or the
    brokers are busy, instead of multiplying. What one takes says both: the pause follows it (ADR 39).
    """

    def __init__(self, least_s: float = 0.0) -> None:
        """`least_s`: between the starts of two cycles, unless somebody waits."""
        self._least_s = least_s
        self._usual_s = _SPIKE_S

    def next_start(self, started: float, ended: float, full: bool) -> NextStart:
        """When the next cycle may start after this one. A backlog (`full`) does not wait."""
        usual = self._usual_s
        usual += (min(ended - started, _SPIKE * usual + _SPIKE_S) - usual) * _WEIGHT
        self._usual_s = usual
        if full:
            return NextStart(ended, ended)
        for_waiters = started + min(_FOR_WAITERS * usual, _MAX_S)
        return NextStart(for_waiters, started + max(min(_FOR_ALL * usual, _MAX_S), self._least_s))
