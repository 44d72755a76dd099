"""The clock of a process whose machine may be wrong about the time.

A node delivers by its own clock. If that were stepped an hour ahead (an operator's slip, a broken time server), all
messages of the next hour would leave early, and that cannot be undone. So time goes on by a steady clock. The wall
clock corrects it as long as the two differ by little, as they do when the wall clock is slewed. Anything larger is a
step. It is followed only when the log, whose clock is another machine's, agrees (`cluster/clocks/clock_watch.py`).

Within that bound the clock may still differ from the log's. What is known of the difference is used to keep messages
from being early: deliveries are made by the earlier of the two clocks, and relative times count from the later one.
"""

from __future__ import annotations

from collections.abc import Callable

_WOBBLE_MS = 10  # a correction that turns the time back by so little is noise of the measurement: time stands still


class GuardedClock:
    """Call it for the time, epoch ms. `wall` gives epoch ms, `steady` ms of any origin that no one ever sets."""

    def __init__(self, wall: Callable[[], int], steady: Callable[[], int], bound_ms: int = 500) -> None:
        self._wall, self._steady, self._bound = wall, steady, bound_ms
        self._difference = wall() - steady()
        # The same for the log's clock, as it was measured last: the earlier and the later of the two clocks then, and
        # the log's own.
        self._earlier = self._later = self._log = self._difference
        self._trusted = True
        self._last_answer = 0  # the last answer of `delivering`
        self.stepped_ms = 0
        """How far the wall clock is from this one, when that is more than the bound; 0 while it is not."""

    def __call__(self) -> int:
        return self._follow() + self._difference

    def delivering(self) -> int:
        """The time to deliver by, epoch ms: never ahead of the log's clock, as far as that is known."""
        now = self._follow() + min(self._difference, self._earlier)
        if now < self._last_answer <= now + _WOBBLE_MS:
            return self._last_answer
        self._last_answer = now
        return now

    def accepting(self) -> int:
        """The time that relative times count from, epoch ms: never behind the log's clock, as far as that is known.

        While this machine's clock is not to be trusted it is the log's alone, to judge absolute times by.
        """
        return self._follow() + (max(self._difference, self._later) if self._trusted else self._log)

    def compare(self, offset_ms: float, *, trusted: bool) -> None:
        """The log's clock minus this one, as measured just now, and whether that leaves this one to be trusted."""
        self._log = self._difference + int(offset_ms)
        self._earlier, self._later = min(self._difference, self._log), max(self._difference, self._log)
        self._trusted = trusted

    def import_file(self) -> None:
        """The wall clock is right after all: follow it from now on."""
        self._difference = self._wall() - self._steady()
        self.stepped_ms = 0

    def _follow(self) -> int:
        """Follow the wall clock if it is near; what the steady clock shows."""
        ticks = self._steady()
        difference = self._wall() - ticks
        step = difference - self._difference
        if -self._bound <= step <= self._bound:
            self._difference, self.stepped_ms = difference, 0
        else:
            self.stepped_ms = step
        return ticks
