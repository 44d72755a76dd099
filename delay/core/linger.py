"""How long a shard lets commands and due messages gather before its next cycle."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

_REST = 1.5  # by the time a cycle took: one that took long says that the machine or the brokers have enough to do
_MAX_S = 0.05
_MEMORY_S = 0.5


@dataclass(frozen=True, slots=True)
class Linger:
    """Cycles have a price of their own, so that where there is much they should widen instead of multiplying.

    `least_s`: s between the starts of two cycles where there is little to do. `each_s`: s more to that for each command
    and delivery per second; it suits a log whose cycles are dear, as Kafka's transactions are.
    """

    least_s: float = 0.008
    each_s: float = 0.0


class NextStart(NamedTuple):
    """When the next cycle may start (s): at once for somebody who waits for an answer, and for all others."""

    for_waiters: float
    for_all: float


class LingerState:
    """The gathering of one master. Times in s, of any clock that goes on steadily."""

    def __init__(self, linger: Linger) -> None:
        self._least_s, self._each_s = linger.least_s, linger.each_s
        self._recent = 0.0  # commands and deliveries lately, older ones counting less
        self._last = -math.inf

    def next_start(self, started: float, ended: float, handled: int, full: bool) -> NextStart:
        """When the next cycle may start, after one that handled so many.

        Whoever waits for an answer waits no longer than cycles are dear: a part of the time that this one took. A
        backlog (`full`) does not wait for long either.
        """
        fading = math.exp((self._last - started) / _MEMORY_S)
        self._recent, self._last = self._recent * fading + handled, started
        if full:
            return NextStart(started + self._least_s, started + self._least_s)
        wider = min(max(_REST * (ended - started), self._each_s * self._recent / _MEMORY_S), _MAX_S)
        return NextStart(started + wider, started + max(self._least_s, wider))
