from __future__ import annotations

import pytest

from duemq.delay.core.linger import Linger, LingerState

DEAR = Linger(0.004, 1e-6)


def pauses(rate: float, spent_s: float = 0.002, seconds: float = 3.0, full: bool = False) -> list[float]:
    """What a shard does that meets `rate` commands and deliveries per second."""
    gather, now, waited = LingerState(DEAR), 0.0, 0.004
    found = []
    while now < seconds:
        next_start = gather.next_start(now, now + spent_s, round(rate * waited), full).for_all
        waited = next_start - now
        found.append(waited)
        now = next_start
    return found


def test_little_to_do_waits_the_least() -> None:
    assert pauses(0)[-1] == pauses(2_000)[-1] == pytest.approx(0.004)


def test_cycles_widen_with_the_flow_and_settle() -> None:
    at_20_000 = pauses(20_000)[-20:]
    assert 0.018 < min(at_20_000) and max(at_20_000) < 0.025
    assert pauses(8_000)[-1] < min(at_20_000)


def test_slow_cycles_are_fewer() -> None:
    assert pauses(100, spent_s=0.02)[-1] == pytest.approx(0.03)
    assert pauses(100, spent_s=1.0)[-1] == pytest.approx(0.05)


def test_a_backlog_does_not_wait() -> None:
    assert pauses(100_000, full=True) == pytest.approx([0.004] * 750, rel=1e-3)


def test_one_burst_does_not_hold_up_the_next_messages() -> None:
    gather = LingerState(DEAR)
    assert gather.next_start(0.0, 0.002, 1_000, False).for_all < 0.006


@pytest.mark.parametrize(("spent_s", "waits_s"), [(0.001, 0.0015), (0.01, 0.015), (1.0, 0.05)])
def test_who_waits_for_an_answer_waits_as_long_as_cycles_are_dear(spent_s: float, waits_s: float) -> None:
    next_start = LingerState(Linger(0.008)).next_start(0.0, spent_s, 10, False)
    assert next_start.for_waiters == pytest.approx(waits_s)
    assert next_start.for_all == pytest.approx(max(0.008, waits_s))


def test_on_a_log_whose_cycles_are_dear_many_who_wait_share_one() -> None:
    gather, now = LingerState(DEAR), 0.0
    for _ in range(500):  # 10,000 a second
        next_start = gather.next_start(now, now + 0.001, 40, False)
        now += 0.004
    assert next_start.for_waiters - now == pytest.approx(0.01 - 0.004, rel=0.05)
