"""The clock that does not follow a jump before the log confirms it, and what it gives for delivering and accepting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from duemq.cluster.clocks.clock_watch import ClockWatch
from duemq.delay.health import HealthTracker
from duemq.election.base import NodeState
from tests.support.shard.clock_world import HOUR, Brokers, Machine, measured


@pytest.mark.parametrize("step", [HOUR, -HOUR, 501, -501])
def test_a_step_is_told_and_not_followed(step: int) -> None:
    machine = Machine()
    machine.wrong = step
    machine.run(70)
    assert machine.clock() == machine.true
    assert machine.clock.stepped_ms == step
    machine.wrong = 0
    assert (machine.clock(), machine.clock.stepped_ms) == (machine.true, 0)


def test_a_clock_that_is_slewed_is_followed() -> None:
    machine = Machine()
    for _ in range(100):
        machine.run(1_000)
        machine.wrong -= 10
        assert machine.clock() == machine.true + machine.wrong
    assert machine.clock.stepped_ms == 0


def test_deliveries_are_made_by_the_earlier_clock_and_delays_count_from_the_later_one() -> None:
    machine = Machine(wrong=400)
    machine.clock.compare(-400.0, trusted=True)
    assert machine.clock() - machine.true == 400
    assert machine.clock.delivering() == machine.true
    assert machine.clock.accepting() - machine.true == 400
    machine = Machine(wrong=-400)
    machine.clock.compare(400.0, trusted=True)
    assert machine.clock.delivering() - machine.true == -400
    assert machine.clock.accepting() == machine.true


@pytest.mark.parametrize("step", [450, -450])
def test_a_small_step_makes_nothing_early_before_it_is_measured(step: int) -> None:
    machine = Machine()
    machine.clock.compare(0.0, trusted=True)
    machine.wrong = step
    machine.run(10)
    assert machine.clock() - machine.true == step
    assert machine.clock.delivering() <= machine.true <= machine.clock.accepting()


def test_the_time_to_deliver_by_stands_still_where_the_measured_offset_wobbles() -> None:
    machine = Machine(wrong=300)
    before = 0
    for offset in (-300.0, -301.4, -299.0, -302.0, -298.5, -308.0, -299.0):
        machine.clock.compare(offset, trusted=True)
        for _ in range(5):
            machine.run(1)
            now = machine.clock.delivering()
            assert before <= now <= machine.true + 10
            before = now
    machine.clock.compare(-400.0, trusted=True)
    assert machine.clock.delivering() == machine.true - 100, "more than that is no wobble"


def test_absolute_times_are_judged_by_the_log_while_this_clock_is_not_trusted() -> None:
    machine = Machine(wrong=HOUR)
    machine.clock.compare(float(-HOUR), trusted=False)
    assert machine.clock.accepting() == machine.true


def health(watch: ClockWatch) -> HealthTracker:
    return HealthTracker({}, watch)


@pytest.mark.parametrize(
    ("brokers", "followed", "state"),
    [(HOUR, HOUR, NodeState.READY), (0, 0, NodeState.READY), (-HOUR, 0, NodeState.OUT)],
)
def test_a_step_is_followed_where_the_brokers_made_it_too(brokers: int, followed: int, state: NodeState) -> None:
    machine = Machine()
    watch = ClockWatch(machine.clock, 500)
    measured(watch, Brokers(machine))
    machine.wrong = HOUR
    measured(watch, Brokers(machine, brokers))
    assert machine.clock() == machine.true + followed
    told = health(watch).judge(None, draining=False)[1]
    assert told.state is state
    assert ("node.max_clock_offset_ms" in told.reason) == (state is NodeState.OUT)


def test_what_a_node_says_of_itself() -> None:
    waits: list[str | None] = [None]
    shard = SimpleNamespace(waits=lambda: waits[-1], seeks_file=lambda: False, trouble=lambda: None, leading=False)
    other = SimpleNamespace(waits=lambda: None, seeks_file=lambda: False, trouble=lambda: None, leading=False)
    machine = Machine()
    watch = ClockWatch(machine.clock)
    measured(watch, Brokers(machine))
    keeper = HealthTracker({0: cast(Any, shard), 1: cast(Any, other)}, watch)
    assert keeper.judge(None, draining=False)[1].state is NodeState.JOINING
    keeper.caught_up.update((0, 1))
    assert keeper.judge(None, draining=True)[1].state is NodeState.DRAINING
    assert keeper.judge("no broker answers", draining=False)[1].reason == "no broker answers"
    ready = keeper.judge(None, draining=False)[1]
    assert ready.state is NodeState.READY and keeper.worth_telling(ready) and not keeper.worth_telling(ready)
    waits.append("shard 0 waits for a file")
    waiting = keeper.judge(None, draining=False)[1]
    assert (waiting.state, waiting.unfit) == (NodeState.READY, {0: "shard 0 waits for a file"})
    assert keeper.worth_telling(waiting)
    waits.pop()
    keeper.lag = {0: 3}
    assert keeper.worth_telling(keeper.judge(None, draining=False)[1])
    full = keeper.judge(None, draining=False, watermark=3, full="91.0 %")[1]
    assert full.state is NodeState.READY and keeper.worth_telling(full), "it delivers"
    assert not keeper.worth_telling(keeper.judge(None, draining=False, watermark=3, full="91.1 %")[1])
    assert keeper.worth_telling(keeper.judge(None, draining=False, watermark=2)[1])
    keeper.lag = {0: 1_001, 1: 0}
    behind = keeper.judge(None, draining=False)[1]
    assert keeper.worth_telling(behind) and list(behind.unfit) == [0]
    keeper.lag = {0: 501, 1: 0}
    assert list(keeper.judge(None, draining=False)[1].unfit) == [0], "it has to come well below the bound"
    keeper.lag = {0: 500, 1: 0}
    assert not keeper.judge(None, draining=False)[1].unfit
    keeper.unfit[0] = "the books differ"
    assert keeper.judge(None, draining=False)[1].state is NodeState.READY, "it can lead the other one"
    keeper.unfit[1] = "shard 1 is stopped"
    out = keeper.judge(None, draining=True)[1]
    assert (out.state, out.reason) == (NodeState.OUT, "shard 0: the books differ; shard 1 is stopped")


def test_a_node_that_still_gets_a_file_is_not_ready_and_one_that_nobody_can_give_it_is() -> None:
    seeks = [True]
    shard = SimpleNamespace(
        waits=lambda: "shard 0 waits for a file", seeks_file=lambda: seeks[0], trouble=lambda: None, leading=False
    )
    other = SimpleNamespace(waits=lambda: None, seeks_file=lambda: False, trouble=lambda: None, leading=False)
    machine = Machine()
    watch = ClockWatch(machine.clock)
    measured(watch, Brokers(machine))
    keeper = HealthTracker({0: cast(Any, shard), 1: cast(Any, other)}, watch)
    keeper.caught_up.add(1)
    joining = keeper.judge(None, draining=False)[1]
    assert (joining.state, joining.reason) == (NodeState.JOINING, "catching up: 1 of 2 shards are behind")
    assert list(joining.unfit) == [0], "and it is given to nobody here"
    seeks[0] = False
    assert keeper.judge(None, draining=False)[1].state is NodeState.READY, "it can lead the other one"
    seeks[0] = True
    keeper.unfit[0] = "shard 0 is stopped"
    assert keeper.judge(None, draining=False)[1].state is NodeState.READY
    del keeper.unfit[0]
    keeper.caught_up.add(0)
    assert keeper.judge(None, draining=False)[1].state is NodeState.READY, "it was ready, and serves on"
