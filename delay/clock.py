"""A clock that does not follow a jump of the system's time before the log's clock has confirmed it.

A node delivers by its own clock. Were that stepped an hour ahead (an operator's slip, a broken time server), all
messages of the next hour would leave early, and that cannot be undone. So time goes on by the monotonic clock; the wall
clock corrects it as long as the two differ by little, as they do when it is slewed. Anything larger is a step: it is
told, and adopted only when the log, whose clock is another machine's, agrees.
"""

from __future__ import annotations

from collections.abc import Callable


class GuardedClock:
    """Call it for the time, epoch ms. `wall` gives epoch ms, `monotonic` ms of any origin."""

    def __init__(self, wall: Callable[[], int], monotonic: Callable[[], int], bound_ms: int = 500) -> None:
        self._wall, self._monotonic, self._bound = wall, monotonic, bound_ms
        self._difference = wall() - monotonic()
        self.stepped_ms = 0
        """How far the wall clock is from this one, when that is more than the bound; 0 while it is not."""

    def __call__(self) -> int:
        ticks = self._monotonic()
        difference = self._wall() - ticks
        step = difference - self._difference
        if -self._bound <= step <= self._bound:
            self._difference, self.stepped_ms = difference, 0
        else:
            self.stepped_ms = step
        return ticks + self._difference

    def adopt(self) -> None:
        """The wall clock is right after all: follow it from now on."""
        self._difference = self._wall() - self._monotonic()
        self.stepped_ms = 0
