"""The rest after a cycle follows the CPU that one takes."""

from __future__ import annotations

import pytest

from duemq.delay.core.linger import Linger

MS = 0.001


def rest(linger: Linger, cpu_s: float, cycles: int = 100, spent_s: float = 2 * MS) -> tuple[float, float]:
    """After the last of so many cycles: where somebody waits, and where nobody does."""
    now = after = 0.0
    for _ in range(cycles):
        after = now + spent_s
        next_start = linger.next_start(now, after, cpu_s, False)
        now = next_start.for_all
    return next_start.for_waiters - after, next_start.for_all - after


@pytest.mark.parametrize("cpu_s", [0.5 * MS, MS, 5 * MS, 20 * MS])
def test_the_rest_follows_the_cpu_of_a_cycle(cpu_s: float) -> None:
    assert rest(Linger(), cpu_s) == pytest.approx((0.5 * cpu_s, 2 * cpu_s), rel=0.01)


def test_waiting_for_the_log_is_a_rest() -> None:
    assert rest(Linger(), MS, spent_s=300 * MS) == pytest.approx((0.5 * MS, 2 * MS), rel=0.01)


def test_a_cycle_of_seconds_is_no_reason_to_rest_for_seconds() -> None:
    assert rest(Linger(), 3.0) == pytest.approx((0.05, 0.05))


def test_a_backlog_does_not_wait() -> None:
    assert Linger(0.5).next_start(1.0, 1.02, 0.02, True) == (1.02, 1.02)


def test_the_least_pause_holds_up_nobody_who_waits() -> None:
    next_start = Linger(8 * MS).next_start(1.0, 1.002, MS, False)
    assert next_start.for_waiters < 1.0025 and next_start.for_all == pytest.approx(1.008)


def test_one_burst_does_not_hold_up_the_next_messages() -> None:
    linger = Linger()
    rest(linger, MS)
    assert rest(linger, 200 * MS, 1)[1] < 4 * MS


def test_a_new_master_does_not_rest_as_long_as_its_first_cycle_worked() -> None:
    assert rest(Linger(), 400 * MS, 1)[1] < MS


def test_a_load_that_makes_cycles_dear_is_noticed_soon() -> None:
    linger = Linger()
    rest(linger, MS)
    assert rest(linger, 10 * MS, 16)[1] > 12 * MS
