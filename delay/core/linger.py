"""How long a shard lets commands and due messages gather before its next cycle."""

from __future__ import annotations

import math
from dataclasses import dataclass

_REST = 1.5  # by the time a cycle took: one that took long says that the machine or the brokers have enough to do
_MAX_S = 0.05
_MEMORY_S = 0.5
_LIGHT_PER_S = 1_000  # commands and deliveries


@dataclass(frozen=True, slots=True)
class Linger:
    """Cycles have a price of their own, so that where there is much they should widen instead of multiplying.

    `least_s`: s between the starts of two cycles where there is little to do. `each_s`: s more to that for each command
    and delivery per second; it suits a log whose cycles are dear, as Kafka's transactions are.
    """

    least_s: float = 0.008
    each_s: float = 0.0


class LingerState:
    """The gathering of one master. Times in s, of any clock that goes on steadily."""

    def __init__(self, linger: Linger) -> None:
        self._least_s, self._each_s = linger.least_s, linger.each_s
        self._recent = 0.0  # commands and deliveries lately, older ones counting less
        self._last = -math.inf

    @property
    def light(self) -> bool:
        """Whether there is so little to do that a cycle more, for somebody who waits for an answer, is no matter."""
        return self._recent < _LIGHT_PER_S * _MEMORY_S

    def until(self, started: float, ended: float, handled: int, full: bool) -> float:
        """When the next cycle may start, after one that handled so many. A backlog (`full`) does not wait for long."""
        fading = math.exp((self._last - started) / _MEMORY_S)
        self._recent, self._last = self._recent * fading + handled, started
        if full:
            return started + self._least_s
        wider = max(_REST * (ended - started), self._each_s * self._recent / _MEMORY_S)
        return started + max(self._least_s, min(wider, _MAX_S))
