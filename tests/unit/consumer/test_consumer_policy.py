"""When a message comes back, and when it is given up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from duemq.client.consumer.options import ConsumerOptions
from duemq.client.consumer.retry.policy import (
    DeadLetter,
    Delays,
    Exponential,
    Levels,
    Pause,
    Policy,
    Reject,
    RetryLater,
    Wait,
    decide,
    pause_s,
)
from duemq.model.errors import Rejected

NOW = 1_900_000_000_000


def test_levels_are_rocketmqs() -> None:
    """10 s, 30 s, 1 m to 10 m, 20 m, 30 m, 1 h, 2 h: sixteen of them, and then it was often enough."""
    waits = [Levels().wait(retried) for retried in range(17)]
    minutes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120]
    assert [wait.ms(0) for wait in waits if wait] == [10_000, 30_000, *(60_000 * each for each in minutes)]
    assert waits[0] == Wait("level", 3) and waits[16] is None
    assert Levels(first=17, retries=3).wait(2) == Wait("level", 18)


def test_exponential_grows_up_to_a_bound() -> None:
    policy = Exponential(first="1s", factor=3, most=timedelta(seconds=20), retries=5)
    waits = [policy.wait(retried) for retried in range(6)]
    assert waits == [*(Wait("after", ms) for ms in (1_000, 3_000, 9_000, 20_000, 20_000)), None]
    assert Exponential(retries=10**6).wait(10**5) == Wait("after", 7_200_000)


def test_delays_are_taken_one_after_another() -> None:
    policy = Delays(["90s", "5ms", timedelta(milliseconds=0.5)])
    waits = [policy.wait(retried) for retried in range(4)]
    assert waits == [*(Wait("after", ms) for ms in (90_000, 5, 1)), None]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("boom"), Wait("level", 4)),
        (RetryLater(), Wait("level", 4)),
        (RetryLater(delay="2h30m"), Wait("after", 9_000_000)),
        (RetryLater(delay=timedelta(seconds=1)), Wait("after", 1_000)),
        (RetryLater(at=datetime(2031, 1, 1, tzinfo=UTC)), Wait("at", 1_924_992_000_000)),
        (RetryLater(at="2031-01-01T00:00:00Z"), Wait("at", 1_924_992_000_000)),
        (RetryLater(level=7), Wait("level", 7)),
        (RetryLater(level=0), Wait("level", 4)),
        (RetryLater(delay=timedelta()), Wait("level", 4)),
        (RetryLater(at=NOW), Wait("level", 4)),
        (RetryLater(at=NOW + 1), Wait("at", NOW + 1)),
        (RetryLater(level=-1), DeadLetter("rejected")),
        (Reject("never"), DeadLetter("rejected")),
    ],
)
def test_what_becomes_of_a_failure(error: Exception, expected: Wait | DeadLetter) -> None:
    """What says no wait leaves it to the policy."""
    assert decide(error, Levels(), 1, NOW) == expected


@pytest.mark.parametrize("error", [ValueError(), RetryLater(delay="5ms"), RetryLater(level=0)])
def test_after_the_last_retry_nothing_comes_back(error: Exception) -> None:
    assert decide(error, Levels(retries=2), 1) != DeadLetter("retries")
    assert decide(error, Levels(retries=2), 2) == DeadLetter("retries")


class NotYet(RetryLater):
    counts = False


@pytest.mark.parametrize(
    ("error", "expected"), [(NotYet(delay="5ms"), Wait("after", 5)), (NotYet(level=-1), DeadLetter("rejected"))]
)
def test_what_does_not_count_comes_back_however_often(error: NotYet, expected: Wait | DeadLetter) -> None:
    assert decide(error, Levels(retries=2), 2) == expected
    assert decide(NotYet(), Levels(retries=2), 1) == Wait("level", 4)
    assert decide(NotYet(), Levels(retries=2), 2) == Wait("level", 3)
    for each, counts in ((error, False), (NotYet(), False), (RetryLater(delay="5ms"), True), (ValueError(), True)):
        to = decide(each, Levels(), 1)
        assert isinstance(to, DeadLetter) or to.counts is counts


class Broken:
    def __init__(self, wait: object) -> None:
        self._wait = wait

    def wait(self, retried: int) -> Wait | None:
        return self._wait  # type: ignore[return-value]


@pytest.mark.parametrize(
    "wait",
    [5, timedelta(5), Wait("soon", 5), Wait("after", -1), Wait("after", 1.5), Wait("at", 10**15), Wait("level", None)],  # type: ignore[arg-type]
)
def test_a_policy_that_gives_no_wait_is_told(wait: object) -> None:
    with pytest.raises(Rejected, match="not a valid Wait"):
        decide(ValueError(), Broken(wait), 0)


def test_a_pause_takes_half_as_long_again_each_time_up_to_a_minute() -> None:
    """What comes back is missed for half of its absence more at most."""
    waits = [pause_s(Pause(after_s=5), None)]
    while len(waits) < 9:
        assert waits[-1] <= 5 + sum(waits[:-1]) / 2
        waits.append(pause_s(Pause(after_s=5), waits[-1]))
    assert waits[:3] == [5, 7.5, 11.25] and waits[-3:] == [56.953125, 60, 60]
    assert pause_s(Pause(after_s=30), 5.0) == 30 and pause_s(Pause(after_s=600), None) == 60
    assert all(pause_s(Pause(after_s=wrong), None) == 1 for wrong in (0, -1, float("nan"), "x"))  # type: ignore[arg-type]


def test_a_wait_says_how_long() -> None:
    assert Wait("level", 99).ms(0) == 7_200_000 and Wait("level", 0).ms(5) == 0
    assert Wait("at", 10).ms(4) == 6 and Wait("at", 10).ms(40) == 0
    assert Wait("at", 10).header == ("duemq-deliver-at", b"10") and Wait("level", 3).header == ("DELAY", b"3")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"delay": "5s", "level": 3}, "delay"),
        ({"delay": "-5s"}, "delay"),
        ({"delay": 60}, "delay"),
        ({"delay": 0.5}, "delay"),
        ({"delay": "soon"}, "delay"),
        ({"delay": f"{10**15}ms"}, "delay"),
        ({"at": datetime(2031, 1, 1)}, "at"),
        ({"at": "tomorrow"}, "at"),
        ({"at": 1_924_992_000}, "at"),
        ({"at": datetime(1, 1, 1, tzinfo=UTC)}, "at"),
    ],
)
def test_a_time_that_is_none_is_refused(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(Rejected) as refused:
        RetryLater(**arguments)  # type: ignore[arg-type]
    assert refused.value.field == field


@pytest.mark.parametrize(
    "make",
    [
        lambda: Levels(retries=-1),
        lambda: Levels(first=-1),
        lambda: Exponential(factor=0.5),
        lambda: Exponential(first="x"),
        lambda: Delays(["90s", "-1s"]),
        lambda: ConsumerOptions(concurrency=0),
        lambda: ConsumerOptions(per_key=0),
        lambda: ConsumerOptions(per_key=2, ordered=True),
        lambda: ConsumerOptions(mode="both"),
        lambda: ConsumerOptions(start="middle"),
        lambda: ConsumerOptions(start=datetime(2031, 1, 1)),
        lambda: ConsumerOptions(timeout_s=0),
        lambda: ConsumerOptions(tell_errors="everything"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(make: type[Policy]) -> None:
    with pytest.raises(Rejected) as refused:
        make()
    assert refused.value.field is not None and refused.value.field in str(refused.value)
