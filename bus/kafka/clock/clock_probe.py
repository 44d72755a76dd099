"""Measures the offset between this machine's clock and the brokers'.

Kafka has no request for the time. But a broker stamps the records of duemq's own topics when it appends them, and
returns the stamp in its acknowledgement: the broker's clock showed that time between the send and the answer. So each
sample limits the brokers' clock to an interval, and only the certain part of the difference is reported.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

_LATELY_S, _FRESH_S, _MAX_SAMPLES, _TRIES = 10.0, 1.0, 64, 3
_SOON_S = 0.05  # a node with many shards takes hundreds of samples a second, which are no better than twenty
_GRAIN_MS = 2.0  # error of three clock readings in whole ms
_STEP_MS = 50.0  # samples may differ by this much, because brokers' clocks differ from one another, too


class _Sample(NamedTuple):
    """`ahead`: the brokers' clock minus the steady clock, ms, ± `doubt`. `at`: when the sample was taken, s."""

    at: float
    ahead: float
    doubt: float


class ClockProbe:
    """`clock` returns epoch ms; `steady` returns seconds since an arbitrary origin.

    Samples are relative to the steady clock, so that they stay right when `clock` is set.
    """

    def __init__(self, clock: Callable[[], int], steady: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._steady = clock, steady
        self.samples: list[_Sample] = []

    def sample(self, stamp: int, before: int, after: int) -> None:
        """Add a sample: a broker's time, and this machine's time before the request and after the answer, ms."""
        if after < before:
            return  # the clock was set back in between
        at, doubt = self._steady(), (after - before) / 2 + _GRAIN_MS
        ahead = stamp - (before + after) / 2 + self._clock_ahead(at)
        last = self.samples[-1] if self.samples else None
        if last is not None and at - last.at < _SOON_S and last.doubt <= doubt and abs(last.ahead - ahead) <= doubt:
            return
        # A clock was set, or this machine was suspended: earlier samples are worthless.
        older = self.samples[1 - _MAX_SAMPLES :]
        agreeing = [old for old in older if abs(old.ahead - ahead) <= old.doubt + doubt + _STEP_MS]
        self.samples = [*agreeing, _Sample(at, ahead, doubt)]

    def lately(self) -> float | None:
        """The brokers' clock minus this machine's, ms, reduced to the part that is certain. It comes from the fastest
        sample in the last few seconds; None if there is no sample."""
        now = self._steady()
        samples = [sample for sample in self.samples if now - sample.at <= _LATELY_S]
        if not samples:
            return None
        best = min(reversed(samples), key=lambda sample: sample.doubt)
        offset = best.ahead - self._clock_ahead(now)
        return max(offset - best.doubt, 0.0) if offset > 0 else min(offset + best.doubt, 0.0)

    async def measure(self, ask: Callable[[], Awaitable[tuple[int, int, int]]]) -> float:
        """The same, after a new sample if the latest one is old. `ask` returns the arguments for `sample`; its errors
        are raised."""
        if not self.samples or self._steady() - self.samples[-1].at > _FRESH_S:
            for _ in range(_TRIES if self.lately() is None else 1):
                self.sample(*await ask())
        return self.lately() or 0.0

    def _clock_ahead(self, now: float) -> float:
        return self._clock() - now * 1000
