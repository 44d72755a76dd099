from __future__ import annotations

import pytest

from duemq.delay.core.linger import Linger, LingerState

DEAR = Linger(0.004, 1e-6)


def pauses(rate: float, spent_s: float = 0.002, seconds: float = 3.0, full: bool = False) -> list[float]:
    """What a shard does that meets `rate` commands and deliveries per second."""
    gather, now, waited = LingerState(DEAR), 0.0, 0.004
    found = []
    while now < seconds:
        next_start = gather.until(now, now + spent_s, round(rate * waited), full)
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
    assert gather.until(0.0, 0.002, 1_000, False) < 0.006


def test_much_to_do_is_not_light() -> None:
    gather, now = LingerState(DEAR), 0.0
    assert gather.light
    for each, light in ((2, True), (20, False)):  # every 4 ms: 500 and 5,000 a second
        for _ in range(500):
            now += 0.004
            gather.until(now, now + 0.002, each, False)
        assert gather.light is light
    gather.until(now + 5, now + 5, 0, False)
    assert gather.light
