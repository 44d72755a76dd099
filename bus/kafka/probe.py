"""How far this machine's clock is from the brokers'.

Kafka has no request for the time. But a broker stamps the records of duemq's own topics when it appends them, and says
so in its acknowledgement: between sending and that, its clock showed this.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable

from duemq.bus.base import Batches, Landed
from duemq.model.record import pack_record

CLOCK_TOPIC = "duemq.clock"
_PROBE = {(CLOCK_TOPIC, 0): [pack_record(None, (), b"")]}
_LATELY_S, _KEPT, _TRIES = 10.0, 64, 3


class ClockProbe:
    """`clock` gives epoch ms."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int, float]] = deque(maxlen=_KEPT)  # when, round trip ms, offset ms

    def sample(self, stamp: int, before: int, after: int) -> None:
        """A broker's time, ms, and ours before sending and after the answer."""
        self._samples.append((time.monotonic(), after - before, stamp - (before + after) / 2))

    def lately(self) -> float | None:
        """The broker's clock minus ours, ms, by the quickest round trip of the last seconds; None if there was none."""
        since = time.monotonic() - _LATELY_S
        known = [(trip, offset) for when, trip, offset in self._samples if when >= since and trip >= 0]
        if not known:
            return None
        shortest = min(trip for trip, _ in known)
        # Of equally quick ones the latest, because a clock may have been set since.
        return next(offset for trip, offset in reversed(known) if trip == shortest)

    async def ask(self, append: Callable[[Batches], Awaitable[Landed]]) -> float:
        """Append a few records to learn it. Raises what `append` raises."""
        for _ in range(_TRIES):
            before = self._clock()
            landed = await append(_PROBE)
            self.sample(landed[CLOCK_TOPIC, 0].timestamp, before, self._clock())
        return self.lately() or 0.0
