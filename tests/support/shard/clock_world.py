"""A machine whose wall clock can be set, and brokers whose time is another, for tests. No real time passes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

from duemq.bus.base import Bus
from duemq.cluster.clocks.clock import GuardedClock
from duemq.cluster.clocks.clock_watch import ClockWatch

HOUR = 3_600_000


class Machine:
    """`true`: what time it really is, ms. `wrong`: how far its wall clock is ahead. `slept`: while suspended, ms."""

    def __init__(self, wrong: int = 0, bound_ms: int = 500) -> None:
        self.true, self.wrong, self.slept = 1_795_000_000_000, wrong, 0
        self.clock = GuardedClock(lambda: self.true + self.wrong, self.steady, bound_ms)

    def steady(self) -> int:
        return self.true - 1_794_000_000_000 - self.slept

    def run(self, ms: int) -> None:
        self.true += ms

    def sleep(self, ms: int) -> None:
        """The machine is suspended; somebody sets its wall clock right afterwards."""
        self.true += ms
        self.slept += ms


class Brokers:
    """A bus that knows nothing but how far its clock is from a machine's. `wrong`: from the true time, ms."""

    def __init__(self, machine: Machine, wrong: int = 0) -> None:
        self.machine, self.wrong = machine, wrong
        self.failure: Exception | None = None

    async def clock_offset_ms(self) -> float:
        if self.failure is not None:
            raise self.failure
        return float(self.machine.true + self.wrong - self.machine.clock())


def measured(watch: ClockWatch, brokers: Brokers, times: int = 1) -> str | None:
    """Why the clock is out after so many comparisons."""
    for _ in range(times):
        with suppress(StopIteration):  # these brokers never let anybody wait
            watch.measure(cast(Bus, cast(Any, brokers))).send(None)
    return watch.why_out()
