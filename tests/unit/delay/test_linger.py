"""The pause between two cycles follows what a cycle takes."""

from __future__ import annotations

import pytest

from duemq.delay.core.linger import Linger


def pauses(spent_s: float, cycles: int = 100, least_s: float = 0.0, full: bool = False) -> list[tuple[float, float]]:
    """From the start of each cycle to the next: where somebody waits, and where nobody does."""
    linger, now, found = Linger(least_s), 0.0, []
    for _ in range(cycles):
        next_start = linger.next_start(now, now + spent_s, full)
        found.append((next_start.for_waiters - now, next_start.for_all - now))
        now = next_start.for_all
    return found


@pytest.mark.parametrize("spent_s", [0.0005, 0.001, 0.005, 0.02])
def test_the_pause_follows_what_a_cycle_takes(spent_s: float) -> None:
    assert pauses(spent_s)[-1] == pytest.approx((1.5 * spent_s, 2 * spent_s), rel=0.01)


def test_a_cycle_of_seconds_is_no_reason_to_wait_for_seconds() -> None:
    assert pauses(3.0)[-1] == pytest.approx((0.05, 0.05))


def test_a_backlog_does_not_wait() -> None:
    assert pauses(0.02, full=True)[-1] == pytest.approx((0.02, 0.02))


def test_the_least_pause_holds_up_nobody_who_waits() -> None:
    assert pauses(0.001, least_s=0.008)[-1] == pytest.approx((0.0015, 0.008))


def test_one_slow_sync_does_not_hold_up_the_next_messages() -> None:
    linger = Linger()
    for number in range(50):
        linger.next_start(number, number + 0.001, False)
    after = linger.next_start(50, 50.2, False)
    assert after.for_all - 50 < 0.003


def test_a_new_master_does_not_wait_as_long_as_its_first_cycle_took() -> None:
    assert Linger().next_start(0.0, 0.4, False).for_all < 0.004


def test_a_load_that_makes_cycles_dear_is_noticed_soon() -> None:
    linger = Linger()
    for number in range(50):
        linger.next_start(number, number + 0.001, False)
    for number in range(50, 66):
        last = linger.next_start(number, number + 0.01, False)
    assert last.for_all - 65 > 0.012
