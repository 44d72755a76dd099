"""The clock that does not follow a jump before the log confirms it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duemq.bus.base import Bus
from duemq.delay.clock import GuardedClock
from duemq.delay.standing import StandingKeeper
from duemq.election.base import NodeState

HOUR = 3_600_000


class Time:
    """A machine whose wall clock can be set, and which knows how much time really passed."""

    def __init__(self) -> None:
        self.real, self.step = 1_000_000, 0
        self.clock = GuardedClock(lambda: self.real + self.step, lambda: self.real - 500_000)


@pytest.mark.parametrize("step", [HOUR, -HOUR, 501, -501])
def test_a_step_is_told_and_not_followed(step: int) -> None:
    time = Time()
    time.step = step
    time.real += 70
    assert time.clock() == 1_000_070
    assert time.clock.stepped_ms == step
    time.step = 0
    assert (time.clock(), time.clock.stepped_ms) == (1_000_070, 0)


def test_a_clock_that_is_slewed_is_followed() -> None:
    time = Time()
    for _ in range(100):
        time.real += 1_000
        time.step -= 10
        assert time.clock() == time.real + time.step
    assert time.clock.stepped_ms == 0


class BrokersClock:
    """A bus that knows nothing but how far its clock is from a node's."""

    def __init__(self, time: Time, true_step: int) -> None:
        self._time, self._step = time, true_step

    async def clock_offset_ms(self) -> float:
        return float(self._time.real + self._step - self._time.clock())


@pytest.mark.parametrize(
    ("brokers", "followed", "state"),
    [(HOUR, HOUR, NodeState.READY), (0, 0, NodeState.READY), (-HOUR, 0, NodeState.OUT)],
)
def test_a_step_is_followed_where_the_brokers_made_it_too(brokers: int, followed: int, state: NodeState) -> None:
    time = Time()
    keeper = StandingKeeper({}, time.clock, 500)
    time.step = HOUR
    time.clock()
    asyncio.run(keeper.measure_clock(cast(Bus, cast(Any, BrokersClock(time, brokers)))))
    assert time.clock() == time.real + followed
    standing = keeper.judge(None, draining=False)
    assert standing.state is state
    assert ("clock" in standing.reason) == (state is NodeState.OUT)


def test_what_a_node_says_of_itself() -> None:
    waits: list[str | None] = [None]
    shard = SimpleNamespace(waits=lambda: waits[-1], trouble=lambda: None, leading=False)
    other = SimpleNamespace(waits=lambda: None, trouble=lambda: None, leading=False)
    keeper = StandingKeeper({0: cast(Any, shard), 1: cast(Any, other)}, lambda: 0, 500)
    assert keeper.judge(None, draining=False).state is NodeState.JOINING
    keeper.caught_up.update((0, 1))
    assert keeper.judge(None, draining=True).state is NodeState.DRAINING
    assert keeper.judge("no broker answers", draining=False).reason == "no broker answers"
    ready = keeper.judge(None, draining=False)
    assert ready.state is NodeState.READY and keeper.worth_telling(ready) and not keeper.worth_telling(ready)
    waits.append("shard 0 waits for a file")
    waiting = keeper.judge(None, draining=False)
    assert (waiting.state, waiting.unfit) == (NodeState.READY, {0: "shard 0 waits for a file"})
    assert keeper.worth_telling(waiting)
    waits.pop()
    keeper.lag = {0: 3}
    assert keeper.worth_telling(keeper.judge(None, draining=False))
    full = keeper.judge(None, draining=False, watermark=3, full="91.0 %")
    assert full.state is NodeState.READY and keeper.worth_telling(full), "it delivers"
    assert not keeper.worth_telling(keeper.judge(None, draining=False, watermark=3, full="91.1 %"))
    assert keeper.worth_telling(keeper.judge(None, draining=False, watermark=2))
    keeper.lag = {0: 1_001, 1: 0}
    behind = keeper.judge(None, draining=False)
    assert keeper.worth_telling(behind) and list(behind.unfit) == [0]
    keeper.lag = {0: 501, 1: 0}
    assert list(keeper.judge(None, draining=False).unfit) == [0], "it has to come well below the bound"
    keeper.lag = {0: 500, 1: 0}
    assert not keeper.judge(None, draining=False).unfit
    keeper.unfit[0] = "the books differ"
    assert keeper.judge(None, draining=False).state is NodeState.READY, "it can lead the other one"
    keeper.unfit[1] = "shard 1 is stopped"
    out = keeper.judge(None, draining=True)
    assert (out.state, out.reason) == (NodeState.OUT, "shard 0: the books differ; shard 1 is stopped")
