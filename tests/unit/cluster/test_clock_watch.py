"""The comparison of a clock with the log's: its bound, its hysteresis, and that no trouble in it ends anything."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from duemq.bus.base import Bus, UnknownTopic
from duemq.cluster.clocks.clock_watch import ClockCollector, ClockWatch
from duemq.model.errors import LogFailed
from tests.support.shard.clock_world import HOUR, Brokers, Machine, measured

BOUND = 500


def test_a_clock_that_was_never_compared_is_out() -> None:
    machine = Machine()
    watch, brokers = ClockWatch(machine.clock, BOUND), Brokers(machine)
    assert "not been compared" in str(watch.why_out())
    brokers.failure = LogFailed("no broker answers")
    assert "no broker answers" in str(measured(watch, brokers))
    brokers.failure = None
    assert measured(watch, brokers) is None


@pytest.mark.parametrize("wrong", [HOUR, -HOUR, 501, -501])
def test_a_clock_that_is_wrong_from_the_start_is_out_until_it_is_set_right(wrong: int) -> None:
    machine = Machine(wrong)
    watch, brokers = ClockWatch(machine.clock, BOUND), Brokers(machine)
    reason = str(measured(watch, brokers))
    assert f"{wrong:+,} ms" in reason and "node.max_clock_offset_ms" in reason
    assert watch.offset_ms == -wrong
    assert measured(watch, brokers, 10) is not None
    machine.wrong = 0
    assert measured(watch, brokers, 3) is None
    assert machine.clock() == machine.true


def test_an_offset_at_the_bound_does_not_change_the_verdict_every_second() -> None:
    machine = Machine()
    watch, brokers = ClockWatch(machine.clock, BOUND), Brokers(machine)
    measured(watch, brokers)
    verdicts = []
    for second in range(20):
        machine.wrong = 495 + 10 * (second % 2)
        verdicts.append(measured(watch, brokers) is None)
    assert verdicts == [True] + [False] * 19
    machine.wrong = 200
    assert [measured(watch, brokers) is None for _ in range(3)] == [False, False, True]
    machine.wrong = 499
    assert measured(watch, brokers, 5) is None


def test_the_sentence_does_not_change_with_every_ms() -> None:
    machine = Machine(HOUR)
    watch, brokers = ClockWatch(machine.clock, BOUND), Brokers(machine)
    first = measured(watch, brokers)
    brokers.wrong = 7
    assert measured(watch, brokers) == first
    brokers.wrong = -HOUR
    assert measured(watch, brokers) != first


@pytest.mark.parametrize("error", [LogFailed("no answer"), UnknownTopic("duemq.clock"), ValueError("a bug")])
@pytest.mark.parametrize("wrong", [0, HOUR])
def test_a_failed_comparison_keeps_the_last_verdict(error: Exception, wrong: int) -> None:
    machine, seconds = Machine(wrong), [0.0]
    watch, brokers = ClockWatch(machine.clock, BOUND, lambda: seconds[0]), Brokers(machine)
    verdict = measured(watch, brokers)
    brokers.failure = error
    assert measured(watch, brokers, 5) == verdict
    assert (watch.failures, watch.why_old()) == (5, None)
    seconds[0] = 61.0
    assert str(error) in str(watch.why_old()) and "61 s" in str(watch.why_old())
    brokers.failure = None
    assert measured(watch, brokers) == verdict and watch.why_old() is None


def test_a_machine_that_was_suspended_follows_at_once() -> None:
    machine = Machine()
    watch, brokers = ClockWatch(machine.clock, BOUND), Brokers(machine)
    measured(watch, brokers)
    machine.sleep(HOUR)
    assert machine.clock() == machine.true - HOUR
    assert measured(watch, brokers) is None
    assert machine.clock() == machine.clock.delivering() == machine.clock.accepting() == machine.true


def test_a_plain_clock_is_judged_too() -> None:
    class Behind:
        async def clock_offset_ms(self) -> float:
            return 700.0

    watch = ClockWatch(lambda: 5, BOUND)
    asyncio.run(watch.measure(cast(Bus, cast(Any, Behind()))))
    assert "-700 ms" in str(watch.why_out())
    assert watch.delivering() == watch.accepting() == 5


def test_what_is_scraped() -> None:
    machine = Machine(2_000)
    watch, brokers, registry = ClockWatch(machine.clock, BOUND), Brokers(machine), CollectorRegistry()
    registry.register(ClockCollector(watch))
    measured(watch, brokers)
    brokers.failure = LogFailed("no answer")
    measured(watch, brokers)
    assert registry.get_sample_value("duemq_clock_offset_seconds") == -2.0
    assert registry.get_sample_value("duemq_clock_out_of_bounds") == 1.0
    assert registry.get_sample_value("duemq_clock_failures_total") == 1.0


# What can happen to a machine, each with a number of ms.
HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(["run", "set", "sleep", "measure", "doubt", "fail"]),
        st.one_of(st.integers(-600, 600), st.integers(-2 * HOUR, 2 * HOUR)),
    ),
    max_size=25,
)


class Doubtful(Brokers):
    """Tells only the part of the offset that is sure. `doubt`: by how much a measurement may be wrong, ms."""

    doubt = 0

    async def clock_offset_ms(self) -> float:
        offset = await super().clock_offset_ms()
        return max(offset - self.doubt, 0.0) if offset > 0 else min(offset + self.doubt, 0.0)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HAPPENINGS, st.integers(-HOUR, HOUR))
@pytest.mark.heavy
def test_never_early_by_more_than_the_doubt_and_always_back(
    happenings: list[tuple[str, int]], wrong_at_start: int
) -> None:
    """The oracle is the true time, which is the brokers'. What is delivered while the clock is in bounds is not early,
    and no delay counts from a time that has passed, whatever is done to the machine between two measurements."""
    machine = Machine(wrong_at_start)
    watch, brokers = ClockWatch(machine.clock, BOUND), Doubtful(machine)
    doubt = 0
    for what, ms in [*happenings, ("measure", 0)]:
        if what == "run":
            machine.run(min(abs(ms), 1_000))
        elif what == "set":
            machine.wrong = ms
        elif what == "sleep":
            machine.sleep(abs(ms))
            brokers.failure = None
            measured(watch, brokers)  # nothing here can know of it before that
        elif what == "doubt":
            brokers.doubt = abs(ms) % 30
        else:
            brokers.failure = LogFailed("no answer") if what == "fail" else None
            measured(watch, brokers)
        doubt = max(doubt, brokers.doubt)
        if watch.why_out() is None:
            assert machine.clock.delivering() <= machine.true + doubt + 10
            assert machine.clock.accepting() >= machine.true - doubt - 1
    machine.wrong, brokers.failure, brokers.doubt = 0, None, 0
    assert measured(watch, brokers, 4) is None
    assert machine.clock() == machine.clock.accepting() == machine.true
    assert machine.clock.delivering() in (machine.true, *range(machine.true + 1, machine.true + 11))
