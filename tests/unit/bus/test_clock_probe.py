"""How far the brokers' clock is from ours, from the stamps they give: by virtual clocks."""

from __future__ import annotations

import asyncio

import pytest

from duemq.bus.kafka.clock.clock_probe import ClockProbe
from tests.support.shard.clock_world import HOUR, Machine


class Site:
    """A machine and the brokers' time, `ahead` of the machine's own when that is right."""

    def __init__(self, ahead: int = 0) -> None:
        self.machine, self.ahead, self.asked = Machine(), ahead, 0
        self.probe = ClockProbe(self.machine.clock, lambda: self.machine.steady() / 1000)

    def sample(self, trip: int, stamped_after: int | None = None) -> None:
        """One round trip; the broker stamps the record some ms after it was sent."""
        before = self.machine.clock()
        first = trip // 2 if stamped_after is None else stamped_after
        self.machine.run(first)
        stamp = self.machine.true + self.ahead
        self.machine.run(trip - first)
        self.probe.sample(stamp, before, self.machine.clock())

    def offset(self) -> float:
        offset = self.probe.lately()
        assert offset is not None
        return offset

    async def ask(self) -> tuple[int, int, int]:
        self.asked += 1
        before = self.machine.clock()
        self.machine.run(2)
        return self.machine.true + self.ahead, before, self.machine.clock()


@pytest.mark.parametrize("ahead", [-3_000, -40, 0, 40, 3_000])
@pytest.mark.parametrize("stamped_after", [0, 5, 10])
def test_only_the_part_that_is_sure_is_told(ahead: int, stamped_after: int) -> None:
    site = Site(ahead)
    site.sample(10, stamped_after)
    assert abs(site.offset()) <= abs(ahead) <= abs(site.offset()) + 14
    assert site.offset() * ahead >= 0


def test_a_slow_answer_takes_nobody_out() -> None:
    site = Site()
    site.sample(4_000, stamped_after=0)
    assert site.offset() == 0
    site.sample(2)
    assert site.offset() == 0


def test_the_quickest_answer_of_the_last_seconds_counts() -> None:
    site = Site(1_000)
    site.sample(1)
    site.sample(400, stamped_after=0)
    assert site.offset() > 990
    site.machine.run(10_001)
    assert site.probe.lately() is None


def test_the_quickest_answer_counts_also_among_hundreds_of_slower_ones() -> None:
    site = Site(1_000)
    site.sample(1)
    for _ in range(200):
        site.sample(10, stamped_after=0)
    assert site.offset() > 990
    site.ahead = 2_000
    site.sample(10)
    assert site.offset() > 1_980, "and what contradicts it counts at once"


def test_samples_stay_right_when_our_clock_follows_a_step() -> None:
    """The machine was suspended for an hour: the first offset of an hour is followed by one of none."""
    site = Site()
    site.sample(2)
    site.machine.sleep(HOUR)
    site.sample(2)
    assert site.offset() > HOUR - 10
    site.machine.clock.import_file()
    assert site.offset() == 0


@pytest.mark.parametrize("step", [HOUR, -HOUR, 300])
def test_what_was_measured_before_a_step_of_the_brokers_no_longer_counts(step: int) -> None:
    site = Site()
    site.sample(1)
    site.ahead = step
    site.sample(20)
    assert abs(abs(site.offset()) - abs(step)) < 15


def test_a_slow_answer_before_a_step_keeps_nothing_that_was_quick() -> None:
    site = Site()
    site.sample(9_000)
    site.sample(1)
    site.ahead = 3_000
    site.sample(20)
    assert site.offset() > 2_980


def test_a_clock_that_was_set_while_we_waited_gives_no_sample() -> None:
    site = Site()
    site.probe.sample(site.machine.true, site.machine.true + HOUR, site.machine.true)
    assert site.probe.lately() is None


def test_brokers_are_asked_only_where_nothing_else_was_stamped_lately() -> None:
    site = Site(700)

    async def measure() -> float:
        return await site.probe.measure(site.ask)

    assert asyncio.run(measure()) > 690 and site.asked == 3
    asyncio.run(measure())
    assert site.asked == 3
    site.machine.run(1_001)
    asyncio.run(measure())
    assert site.asked == 4
    site.machine.run(20_000)
    site.sample(2)
    asyncio.run(measure())
    assert site.asked == 4
