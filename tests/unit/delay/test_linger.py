"""A cycle has a fixed price; the cycles of a node take a twelfth of its thread with it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

import pytest

from duemq.delay.core.linger import CyclePrice, CycleWork, Linger, ThreadShare

MS = 0.001
FIXED_S, EACH_S = 0.3 * MS, 0.015 * MS


def work(messages: int, fixed_s: float = FIXED_S) -> CycleWork:
    return CycleWork(messages, fixed_s + EACH_S * messages)


def price_of(works: Sequence[CycleWork]) -> float:
    price = CyclePrice()
    for one in works:
        price.observe(one)
    return price.fixed_s


def used_to(fixed_s: float = FIXED_S, share: ThreadShare | None = None, messages: Sequence[int] = (3, 9)) -> Linger:
    """A master that has made a hundred cycles of this price long ago."""
    linger = Linger(share or ThreadShare())
    for at, number in enumerate(islice(cycle(messages), 100)):
        linger.next_start(at - 1000.0, at - 1000.0 + MS, work(number, fixed_s), False)
    return linger


def interval_under(load: float, seconds: float = 20.0) -> float:
    """The mean time (s) between the starts of cycles that find this many commands, and due messages, per second."""
    linger, now, last, cycles = Linger(ThreadShare()), 0.0, -0.005, 0
    while now < seconds:
        done = work(max(round(2 * load * (now - last)), 1))
        assert done.cpu_s is not None
        last, now = now, linger.next_start(now, now + done.cpu_s + MS, done, False).for_all
        cycles += 1
    return seconds / cycles


@pytest.mark.parametrize("messages", [(3, 9), (1, 2, 40), (100, 250)])
def test_the_price_of_a_cycle_is_told_from_that_of_its_messages(messages: tuple[int, ...]) -> None:
    assert price_of([work(number) for number in islice(cycle(messages), 200)]) == pytest.approx(FIXED_S, rel=0.05)


def test_the_price_changes_with_the_machine() -> None:
    works = [work(number) for number in islice(cycle((3, 9)), 200)]
    slower = [work(number, 3 * FIXED_S) for number in islice(cycle((3, 9)), 200)]
    assert price_of(works + slower) == pytest.approx(3 * FIXED_S, rel=0.1)


def test_cycles_that_all_do_as_much_cost_what_they_take() -> None:
    assert price_of([work(10)] * 100) == pytest.approx(work(10).cpu_s)


def test_what_a_message_costs_is_remembered_while_all_cycles_do_as_much() -> None:
    works = [work(number) for number in islice(cycle((3, 9)), 200)] + [work(100)] * 2000
    assert price_of(works) == pytest.approx(FIXED_S, rel=0.1)


@pytest.mark.parametrize("load", [100, 2_000, 10_000, 20_000])
def test_what_messages_cost_does_not_make_the_rest_longer(load: float) -> None:
    """A rest that follows all of a cycle's CPU finds more messages after it, which make the next one longer."""
    assert interval_under(load) == pytest.approx(12 * FIXED_S, rel=0.35)


def test_a_cycle_that_waits_for_its_log_rests_meanwhile() -> None:
    next_start = used_to().next_start(10.0, 10.3, work(6), False)
    assert next_start.for_all == next_start.for_waiters == pytest.approx(10.3 + 1.5 * FIXED_S, rel=0.05)


def test_who_waits_is_not_held_up_for_long() -> None:
    next_start = used_to().next_start(10.0, 10.001, work(6), False)
    assert next_start.for_waiters - 10.001 == pytest.approx(1.5 * FIXED_S, rel=0.1)
    assert next_start.for_all - 10.0 == pytest.approx(12 * FIXED_S, rel=0.1)


def test_no_rest_is_longer_than_50_ms() -> None:
    assert used_to(50 * MS).next_start(10.0, 10.06, work(6), False) == pytest.approx((10.11, 10.11))


def test_a_backlog_does_not_wait() -> None:
    assert Linger(ThreadShare(), 0.5).next_start(1.0, 1.02, work(9000), True) == (1.02, 1.02)


def test_a_cycle_that_found_nothing_says_nothing() -> None:
    linger = used_to()
    for at in range(1000):
        linger.next_start(at / 100, at / 100, None, False)
    assert linger.next_start(20.0, 20.001, work(6), False).for_all - 20 == pytest.approx(12 * FIXED_S, rel=0.1)


def test_the_least_pause_holds_up_nobody_who_waits() -> None:
    next_start = Linger(ThreadShare(), 8 * MS).next_start(1.0, 1.001, work(6), False)
    assert next_start.for_waiters < 1.002 and next_start.for_all == pytest.approx(1.008)


def test_one_burst_does_not_hold_up_the_next_messages() -> None:
    linger = used_to()
    linger.next_start(10.0, 10.2, work(10_000), True)
    linger.next_start(10.2, 10.4, CycleWork(6, 200 * MS), False)  # met a garbage collection
    assert linger.next_start(11.0, 11.001, work(6), False).for_all < 11.006


def test_a_new_master_does_not_rest_as_long_as_its_first_cycle_worked() -> None:
    assert Linger(ThreadShare()).next_start(1.0, 1.4, CycleWork(1, 400 * MS), False).for_all < 1.42


@pytest.mark.parametrize("masters", [1, 2, 8])
def test_the_masters_of_a_node_share_what_one_may_take(masters: int) -> None:
    share = ThreadShare()
    lingers = [used_to(share=share) for _ in range(masters)]
    for turn in range(1, 50 * masters):  # as they come
        next_start = lingers[turn % masters].next_start(turn * MS / 10, turn * MS / 10, work(6), False)
    assert next_start.for_all - turn * MS / 10 == pytest.approx(min(masters * 12 * FIXED_S, 50 * MS), rel=0.1)


def test_masters_that_rarely_have_work_do_not_hold_each_other_up() -> None:
    share = ThreadShare()
    lingers = [used_to(share=share) for _ in range(16)]
    for turn in range(1, 100):
        next_start = lingers[turn % 16].next_start(turn * 5 * MS, turn * 5 * MS + MS, work(6), False)
    assert next_start.for_all - turn * 5 * MS < 5 * MS


def test_cycles_for_those_who_wait_do_not_hold_up_messages_afterwards() -> None:
    linger = used_to()
    for turn in range(100):
        next_start = linger.next_start(turn * MS, turn * MS + MS, work(3 + turn % 7), False)
    assert next_start.for_all - turn * MS == pytest.approx(12 * FIXED_S, rel=0.1)


def test_a_master_that_ended_takes_no_share() -> None:
    share = ThreadShare()
    used_to(share=share).close()
    assert share.masters == 0
