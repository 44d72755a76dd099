"""How many messages may be in flight and begin: against a plain model, and in the cases that matter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq.relay.throttle import Throttle

INFINITE = float("inf")


def test_no_more_than_the_limit_is_in_flight() -> None:
    throttle = Throttle(2)
    for _ in range(2):
        assert throttle.wait_s(0.0) == 0
        throttle.begin()
    assert throttle.wait_s(0.0) == INFINITE
    throttle.end(0.0, accepted=True)
    assert throttle.wait_s(0.0) == 0


def test_overload_halves_the_limit_once_a_second_and_success_raises_it_again() -> None:
    throttle = Throttle(64)
    for _ in range(10):  # what was in flight says the same
        throttle.begin()
        throttle.end(5.0, accepted=False, overloaded=True)
    assert throttle.limit == 32
    for second in range(6, 20):
        throttle.begin()
        throttle.end(float(second), accepted=False, overloaded=True)
    assert throttle.limit == 1
    messages = 0
    while throttle.limit < 64:
        throttle.begin()
        throttle.end(20.0, accepted=True)
        messages += 1
    assert throttle.limit == 64
    assert 1_500 < messages < 2_500  # the sum of 1 to 63


def test_three_that_are_postponed_close_it_until_one_is_answered_otherwise() -> None:
    throttle, now, waits = Throttle(10), 100.0, list[float]()
    for _ in range(3):
        assert throttle.wait_s(now) == 0 and not throttle.begin()
        throttle.end(now, accepted=False, overloaded=True, postponed=True)
    for _ in range(8):
        waits.append(throttle.wait_s(now))
        now += waits[-1]
        assert throttle.wait_s(now) == 0 and throttle.begin()
        assert throttle.wait_s(now) == INFINITE, "one at once"
        throttle.end(now, accepted=False, overloaded=True, tried=True)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    now += 60
    assert throttle.begin()
    throttle.give_up(tried=True)
    assert throttle.wait_s(now) == 0 and throttle.begin(), "giving up says nothing"
    throttle.end(now, accepted=True, tried=True)
    assert throttle.wait_s(now) == 0 and not throttle.begin()


def test_one_that_is_accepted_between_keeps_it_open() -> None:
    throttle = Throttle(10)
    for number in range(30):
        throttle.begin()
        throttle.end(float(number), accepted=number % 3 == 2, overloaded=number % 3 < 2, postponed=number % 3 < 2)
    assert throttle.closed_until is None


def test_a_failure_that_is_no_overload_changes_nothing() -> None:
    throttle = Throttle(10)
    throttle.begin()
    throttle.end(0.0, accepted=False)
    assert (throttle.limit, throttle.wait_s(0.0)) == (10, 0)


@settings(max_examples=200, deadline=None)
@given(rate=st.integers(1, 5_000), pauses=st.lists(st.floats(0, 0.5), min_size=1, max_size=200))
def test_the_rate_holds_over_every_span(rate: int, pauses: list[float]) -> None:
    throttle, now, begun = Throttle(1_000_000, rate), 0.0, list[float]()
    for pause in pauses:
        now += pause
        while throttle.wait_s(now) == 0 and len(begun) < 5_000:
            throttle.begin()
            throttle.end(now, accepted=True)
            begun.append(now)
    burst = max(rate / 10, 1.0)
    for first in range(0, len(begun), 97):
        for last in range(first, len(begun), 89):
            assert last - first + 1 <= burst + rate * (begun[last] - begun[first]) + 1 + 1e-6


@pytest.mark.parametrize("rate", [1, 7, 1_000])
def test_it_says_when_to_ask_again(rate: int) -> None:
    throttle, now = Throttle(10, rate), 0.0
    for _ in range(20):
        if wait_s := throttle.wait_s(now):
            assert throttle.wait_s(now + wait_s * 0.5) > 0
            now += wait_s + 1e-9
        assert throttle.wait_s(now) == 0
        throttle.begin()
        throttle.end(now, accepted=True)
