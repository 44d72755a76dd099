"""Compares this machine's clock with the log's. This machine's clock is not used while the two are too far apart.

A clock is out of bounds if its offset exceeds `node.max_clock_offset_ms`. It is in bounds again after several
consecutive comparisons within half of that limit, so that an offset near the limit does not move shards from node to
node every second. A clock that was never compared is out of bounds, too. A failed comparison changes only the counters.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from duemq.background.loop import Loop
from duemq.bus.base import Bus
from duemq.cluster.clocks.clock import GuardedClock
from duemq.model.errors import DuemqError

log = logging.getLogger(__name__)

EVERY_S = 1.0
_STEADY = 3  # consecutive comparisons within half the limit until a clock is in bounds again
_LONG_S = 60.0  # without a comparison; then the last one is too old
_MAX_REASON = 300  # characters


class ClockWatch:
    """Watches a process's clock. A clock that is not a `GuardedClock` is compared, but never corrected."""

    def __init__(
        self, clock: Callable[[], int], bound_ms: int = 500, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` returns epoch ms, `seconds` the time of a steady clock."""
        self._guarded_clock = clock if isinstance(clock, GuardedClock) else None
        self._bound, self._seconds = bound_ms, seconds
        self.delivering = clock if self._guarded_clock is None else self._guarded_clock.delivering
        self.accepting = clock if self._guarded_clock is None else self._guarded_clock.accepting
        self.offset_ms = 0.0
        """The log's clock minus this machine's, ms, by the last comparison."""
        self.failures = 0
        """The number of failed comparisons since the process started."""
        self._why_out: str | None = "this machine's clock has not been compared with the brokers' yet"
        self._in_a_row = 0
        self._compared = False
        self._last_s = seconds()  # of the last comparison
        self._failure = ""  # of the last comparison
        self._logged_s = -_LONG_S  # when a failure was logged
        self._reported_ms = 0.0  # the offset in `why_out`
        self._step_ms = 0  # the last step that was refused

    def why_out(self) -> str | None:
        """Why this machine's clock must not be used, in a sentence; None if it is in bounds."""
        return self._why_out

    def why_old(self) -> str | None:
        """Why the last comparison is too old, in a sentence; None if it is recent."""
        since = self._seconds() - self._last_s
        if not self._failure or since < _LONG_S:
            return None
        return f"this machine's clock was not compared with the brokers' for {since:.0f} s: {self._failure}"

    async def run(self, bus: Bus) -> None:
        """Compare the clocks repeatedly, until cancelled."""
        await Loop("clock", lambda: self.measure(bus), every_s=EVERY_S).run()

    async def measure(self, bus: Bus) -> None:
        """Compare the clock with the log's. Never raises: after any error, the process continues as before."""
        try:
            offset = await bus.clock_offset_ms()
        except Exception as error:
            self._count(error)
            return
        self._last_s, self._failure = self._seconds(), ""
        clock = self._guarded_clock
        if clock is not None:
            clock()  # reading it detects a step
            offset -= self._follow_step(clock, offset)
        self.offset_ms = offset
        self._judge(offset)
        if clock is not None:
            clock.compare(offset, trusted=self._why_out is None)

    def _count(self, error: Exception) -> None:
        self.failures += 1
        now = self._seconds()
        if not self._failure or now - self._logged_s >= _LONG_S:
            self._logged_s = now
            unforeseen = None if isinstance(error, DuemqError) else error
            log.warning("clock: it could not be compared: %r", error, exc_info=unforeseen, extra={"action": "clock"})
        self._failure = (str(error) or repr(error))[:_MAX_REASON]
        if not self._compared:
            self._why_out = f"this machine's clock has not been compared with the brokers' yet: {self._failure}"

    def _follow_step(self, clock: GuardedClock, offset: float) -> int:
        """Follow a step of the wall clock if that brings this clock closer to the log's. Returns the size of the
        followed step, ms."""
        step = clock.stepped_ms
        if not step:
            self._step_ms = 0
        elif abs(offset - step) <= self._bound and abs(offset - step) < abs(offset):
            clock.import_file()
            self._step_ms = 0
            log.warning("clock: followed a step of %+d ms, as the brokers did", step, extra={"action": "clock"})
            return step
        elif abs(step - self._step_ms) > self._bound:  # else the same line would be logged every second
            self._step_ms = step
            log.error(
                "clock: this machine's clock was stepped by %+d ms, which the brokers' was not; "
                "duemq ignores the step", step, extra={"action": "clock"},
            )  # fmt: skip
        return 0

    def _judge(self, offset: float) -> None:
        first, self._compared = not self._compared, True
        if abs(offset) > self._bound:
            if first or self._why_out is None:
                log.error("clock: %+.0f ms from the brokers', out of bounds", -offset, extra={"action": "clock"})
            # Other nodes are notified when the sentence changes, so small changes of the offset do not change it.
            if self._why_out is None or first or self._in_a_row or abs(offset - self._reported_ms) > self._bound:
                self._reported_ms = offset
                self._why_out = (
                    f"this machine's clock is {-offset:+,.0f} ms from the brokers', more than the "
                    f"{self._bound} ms allowed (node.max_clock_offset_ms): set it right"
                )
            self._in_a_row = 0
        elif first:
            self._why_out = None
        elif self._why_out is not None:
            self._in_a_row = self._in_a_row + 1 if abs(offset) <= self._bound / 2 else 0
            self._why_out = (
                f"this machine's clock was more than {self._bound} ms from the brokers' (node.max_clock_offset_ms): "
                f"it is used again once it stays within {self._bound // 2} ms"
            )
            if self._in_a_row >= _STEADY:
                self._why_out = None
                log.warning("clock: in bounds again, %+.0f ms", -offset, extra={"action": "clock"})


class ClockCollector(Collector):
    """Metrics of a process's clock, collected at each scrape."""

    def __init__(self, watch: ClockWatch) -> None:
        self._watch = watch

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        watch = self._watch
        yield GaugeMetricFamily(
            "duemq_clock_offset_seconds", "The log's clock minus this machine's", value=watch.offset_ms / 1000
        )
        out = watch.why_out() is not None
        yield GaugeMetricFamily("duemq_clock_out_of_bounds", "1 while this machine's clock is not used", value=out)
        yield CounterMetricFamily(
            "duemq_clock_failures", "Comparisons with the log's clock that failed", value=watch.failures
        )
