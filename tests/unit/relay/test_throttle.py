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


def test_nothing_begins_before_the_other_side_wants_it() -> None:
    throttle = Throttle(10)
    throttle.begin()
    throttle.end(100.0, accepted=False, overloaded=True, closed_s=30.0)
    assert throttle.wait_s(110.0) == 20.0
    assert throttle.wait_s(130.0) == 0


def test_a_failure_that_is_no_overload_changes_nothing() -> None:
    throttle = Throttle(10)
    throttle.begin()
    throttle.end(0.0, accepted=False, closed_s=30.0)
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
