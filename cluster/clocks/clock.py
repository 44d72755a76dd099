"""The clock of a process on a machine whose clock may be wrong.

A node delivers by its own clock. If that clock were stepped an hour ahead (by an operator's mistake or a broken time
server), all messages of the next hour would be delivered early, and this cannot be undone. So time advances by a steady
clock. The wall clock corrects the steady clock as long as the two differ only slightly, as during a slew. A larger
difference is a step. A step is followed only if the log's clock, which is on another machine, confirms it
(`cluster/clocks/clock_watch.py`).

The clock may still differ slightly from the log's clock. The measured difference is used to prevent early deliveries:
deliveries use the earlier of the two clocks, and relative times start at the later one.
"""

from __future__ import annotations

from collections.abc import Callable

_WOBBLE_MS = 10  # a smaller correction backwards is noise: time stands still instead


class GuardedClock:
    """Calling it returns the time, epoch ms. `wall` returns epoch ms. `steady` returns ms since an arbitrary origin, by
    a clock that is never set."""

    def __init__(self, wall: Callable[[], int], steady: Callable[[], int], bound_ms: int = 500) -> None:
        self._wall, self._steady, self._bound = wall, steady, bound_ms
        self._difference = wall() - steady()
        # The same difference to the steady clock, as of the last measurement: for the earlier and the later of the two
        # clocks, and for the log's clock.
        self._earlier = self._later = self._log = self._difference
        self._trusted = True
        self._last_answer = 0  # the last answer of `delivering`
        self.stepped_ms = 0
        """The wall clock minus this clock, ms, if the difference exceeds the bound; otherwise 0."""

    def __call__(self) -> int:
        return self._follow() + self._difference

    def delivering(self) -> int:
        """The time for deliveries, epoch ms: never ahead of the log's clock as last measured."""
        now = self._follow() + min(self._difference, self._earlier)
        if now < self._last_answer <= now + _WOBBLE_MS:
            return self._last_answer
        self._last_answer = now
        return now

    def accepting(self) -> int:
        """The time at which relative times start, epoch ms: never before the log's clock as last measured.

        While this machine's clock is not trusted, only the log's clock is used, for checks of absolute times.
        """
        return self._follow() + (max(self._difference, self._later) if self._trusted else self._log)

    def compare(self, offset_ms: float, *, trusted: bool) -> None:
        """Set the measured difference (the log's clock minus this clock), and whether this clock is trusted."""
        self._log = self._difference + int(offset_ms)
        self._earlier, self._later = min(self._difference, self._log), max(self._difference, self._log)
        self._trusted = trusted

    def import_file(self) -> None:
        """Accept a step: the wall clock is right, so follow it from now on."""
        self._difference = self._wall() - self._steady()
        self.stepped_ms = 0

    def _follow(self) -> int:
        """Follow the wall clock if the difference is within the bound. Returns the steady clock's time."""
        ticks = self._steady()
        difference = self._wall() - ticks
        step = difference - self._difference
        if -self._bound <= step <= self._bound:
            self._difference, self.stepped_ms = difference, 0
        else:
            self.stepped_ms = step
        return ticks
