"""Watching this machine's clock: it is compared with the log's, and not used while they are too far apart.

A clock is out of bounds above `node.max_clock_offset_ms`. It is in bounds again after some comparisons in a row within
half of that, so that an offset near the bound does not make shards change hands every second. A clock that was never
compared is out of bounds, too. A comparison that fails changes nothing but the counts.
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
_STEADY = 3  # comparisons in a row within half the bound until a clock is in bounds again
_LONG_S = 60.0  # without a comparison
_MAX_REASON = 300  # characters


class ClockWatch:
    """The watch over a process's clock. One that is not guarded is judged like any other, but never corrected."""

    def __init__(
        self, clock: Callable[[], int], bound_ms: int = 500, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` gives epoch ms, `seconds` a time that goes on steadily."""
        self._guarded_clock = clock if isinstance(clock, GuardedClock) else None
        self._bound, self._seconds = bound_ms, seconds
        self.delivering = clock if self._guarded_clock is None else self._guarded_clock.delivering
        self.accepting = clock if self._guarded_clock is None else self._guarded_clock.accepting
        self.offset_ms = 0.0
        """The log's clock minus this machine's, by the last comparison."""
        self.failures = 0
        """Comparisons that failed since the start."""
        self._why_out: str | None = "this machine's clock has not been compared with the brokers' yet"
        self._in_a_row = 0
        self._compared = False
        self._last_s = seconds()  # when it was compared
        self._failure = ""  # of the last comparison
        self._logged_s = -_LONG_S  # when a failure was logged
        self._reported_ms = 0.0  # the offset in `why_out`
        self._step_ms = 0  # the step that was refused last

    def why_out(self) -> str | None:
        """Why this machine's clock is not to be used, in a sentence; None if it is in bounds."""
        return self._why_out

    def why_old(self) -> str | None:
        """Why the clock was not compared for long, in a sentence; None if it was."""
        since = self._seconds() - self._last_s
        if not self._failure or since < _LONG_S:
            return None
        return f"this machine's clock was not compared with the brokers' for {since:.0f} s: {self._failure}"

    async def run(self, bus: Bus) -> None:
        """Measure until cancelled."""
        await Loop("clock", lambda: self.measure(bus), every_s=EVERY_S).run()

    async def measure(self, bus: Bus) -> None:
        """Compare the clock with the log's. Never raises: whatever it meets, the process goes on as it did before."""
        try:
            offset = await bus.clock_offset_ms()
        except Exception as error:
            self._count(error)
            return
        self._last_s, self._failure = self._seconds(), ""
        clock = self._guarded_clock
        if clock is not None:
            clock()  # it sees a step when it is read
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
        """How many ms of a step of the wall clock were followed: all where that brings it nearer to the log's."""
        step = clock.stepped_ms
        if not step:
            self._step_ms = 0
        elif abs(offset - step) <= self._bound and abs(offset - step) < abs(offset):
            clock.import_file()
            self._step_ms = 0
            log.warning("clock: followed a step of %+d ms, as the brokers did", step, extra={"action": "clock"})
            return step
        elif abs(step - self._step_ms) > self._bound:  # not every second the same line
            self._step_ms = step
            log.error(
                "clock: this machine's clock was stepped by %+d ms, which the brokers' was not; "
                "duemq goes on without the step", step, extra={"action": "clock"},
            )  # fmt: skip
        return 0

    def _judge(self, offset: float) -> None:
        first, self._compared = not self._compared, True
        if abs(offset) > self._bound:
            if first or self._why_out is None:
                log.error("clock: %+.0f ms from the brokers', out of bounds", -offset, extra={"action": "clock"})
            # The others are told whenever the sentence changes: not for every ms.
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
    """What a process knows of its clock, at each scrape."""

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
