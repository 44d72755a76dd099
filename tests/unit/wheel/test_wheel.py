"""What the wheel finds, and what it costs."""

import tracemalloc

import numpy as np
import pytest

from duemq.wheel.count_mismatch import CountMismatch
from duemq.wheel.slots import Dues, Leads, Level, Slot
from duemq.wheel.wheel import Wheel

WINDOW = 1_699_999_200_000  # the start of a 30-minute window
NOW = WINDOW + 600_123


def array(*dues: int) -> Dues:
    return np.array(dues, np.int64)


def expanded(now: int, dues: Dues) -> Wheel:
    """A wheel of these dues, expanded around now."""
    wheel = Wheel()
    wheel.add(dues)
    expand(wheel, now, dues)
    return wheel


def expand(wheel: Wheel, now: int, dues: Dues) -> None:
    while (slot := wheel.expandable(now)) is not None:
        expansion = wheel.begin(slot)
        expansion.feed(dues[(dues >= slot.start) & (dues < slot.end)])
        expansion.finish()


def test_next_due_becomes_exact_as_slots_are_expanded() -> None:
    wheel = Wheel()
    wheel.add(array(NOW + 90_001))
    assert wheel.next_due() == WINDOW
    expand(wheel, NOW, array(NOW + 90_001))
    assert wheel.next_due() == WINDOW + 660_000
    expand(wheel, NOW + 60_000, array(NOW + 90_001))
    assert wheel.next_due() == WINDOW + 690_000
    expand(wheel, NOW + 88_000, array(NOW + 90_001))
    assert wheel.next_due() == NOW + 90_001


@pytest.mark.parametrize("step", [1, 7, 250, 1_000])
def test_a_wheel_that_moves_on_in_small_steps_is_always_exact(step: int) -> None:
    dues = np.arange(NOW, NOW + 75_000, 499)  # past the next minute, and so past every boundary but that of a window
    wheel = expanded(NOW, dues)
    for now in range(NOW, NOW + 20_000, step):
        expand(wheel, now, dues)
        assert wheel.due(now) == (dues <= now).sum()
    expand(wheel, NOW - 700, dues)
    assert wheel.due(NOW - 1) == 0, "the clock went back"


def test_what_is_expanded_for_short_leads_is_not_for_long_ones() -> None:
    wheel = Wheel()
    wheel.add(array(NOW + 2_500))
    assert wheel.expandable(NOW, Leads(window=0, minute=0, second=0)) == Slot(WINDOW, Level.WINDOW, 1)
    wheel = expanded(NOW, array())
    wheel.add(array(WINDOW + Level.WINDOW + 5))
    assert wheel.expandable(NOW) is None
    assert wheel.expandable(NOW, Leads(window=Level.WINDOW)) == Slot(WINDOW + Level.WINDOW, Level.WINDOW, 1)


def test_the_slot_around_now_is_expanded_before_those_ahead() -> None:
    wheel = Wheel()
    now = WINDOW + Level.WINDOW - 1_500
    wheel.add(array(now + 1, now + 1_000, now + 1_501))
    assert wheel.expandable(now) == Slot(WINDOW, Level.WINDOW, 2)
    first = wheel.begin(Slot(WINDOW, Level.WINDOW, 2))
    assert wheel.horizon() == WINDOW
    assert wheel.expandable(now) == Slot(WINDOW + Level.WINDOW, Level.WINDOW, 1)
    assert wheel.expandable(now, Leads(window=1_000)) is None
    first.feed(array(now + 1, now + 1_000))
    first.finish()
    assert wheel.expandable(now) == Slot(WINDOW + Level.WINDOW - 60_000, Level.MINUTE, 2)
    with pytest.raises(ValueError):
        wheel.begin(Slot(WINDOW, Level.WINDOW, 2))


def test_a_full_millisecond_is_taken_in_parts() -> None:
    rows = np.full(500_000, NOW, np.int64)
    wheel = expanded(NOW, rows)
    for left in range(400_000, -1, -100_000):
        wheel.take(rows[:100_000], NOW)
        assert wheel.due(NOW) == wheel.total == left
    wheel.advance(NOW + 1)
    assert wheel.next_due() is None


def test_rows_are_delivered_while_their_slot_is_read() -> None:
    rows = np.arange(WINDOW, NOW, 1_000)
    wheel = Wheel()
    wheel.add(rows)
    expansion = wheel.begin(Slot(WINDOW, Level.WINDOW, len(rows)))
    expansion.feed(rows[:100])
    wheel.take(rows[:-1], NOW)
    assert wheel.expandable(NOW + 9 * 3_600_000) is None
    expansion.feed(rows[100:])
    expansion.finish()
    assert wheel.due(WINDOW + 660_000) == wheel.total == 1
    with pytest.raises(CountMismatch):
        wheel.advance(WINDOW + 660_000)


def test_hours_of_backlog_are_taken_from_whole_slots() -> None:
    dues = np.arange(NOW - 6 * 3_600_000, NOW + 3_600_000, 500)
    wheel = expanded(NOW, dues)
    behind = dues[dues <= NOW]
    assert wheel.due(NOW) == len(behind)
    wheel.remove(behind[100:200])
    behind = np.delete(behind, np.s_[100:200])
    for part in np.array_split(behind, 7):
        wheel.take(part, int(part[-1]))
    wheel.advance(NOW + 1)
    assert wheel.due(NOW) == 0
    assert wheel.total == int((dues > NOW).sum())


def test_a_batch_over_many_windows_is_counted_once() -> None:
    far = WINDOW + 100 * Level.WINDOW
    wheel = expanded(NOW, array())
    wheel.add(array(far))
    dues = np.arange(NOW + 5, NOW + 86_400_000, 600_000)
    wheel.add(dues)
    assert wheel.next_due() == NOW + 5
    assert wheel.due(NOW + 2 * 86_400_000) == len(dues)
    wheel.remove(dues)
    assert wheel.next_due() == far


def test_a_row_missing_in_the_store_is_found_by_the_expansion() -> None:
    wheel = Wheel()
    wheel.add(array(NOW, NOW, NOW + 1))
    slot = wheel.expandable(NOW)
    assert slot is not None
    expansion = wheel.begin(slot)
    expansion.feed(array(NOW, NOW))
    with pytest.raises(CountMismatch, match="1 of them are missing") as caught:
        expansion.finish()
    assert (caught.value.start, caught.value.level) == (WINDOW, Level.WINDOW)
    assert (caught.value.expected, caught.value.left) == (3, 1)


def test_a_row_removed_that_never_was_is_found_at_the_end_of_the_expansion() -> None:
    wheel = Wheel()
    wheel.add(array(NOW, NOW))
    slot = wheel.expandable(NOW)
    assert slot is not None
    expansion = wheel.begin(slot)
    wheel.remove(array(NOW + 120_000))
    expansion.feed(array(NOW, NOW))
    with pytest.raises(CountMismatch) as caught:
        expansion.finish()
    assert (caught.value.start, caught.value.left) == (WINDOW + 720_000, -1)


def test_an_expansion_refuses_rows_of_another_slot() -> None:
    wheel = Wheel()
    wheel.add(array(NOW))
    expansion = wheel.begin(Slot(WINDOW, Level.WINDOW, 1))
    for due in (WINDOW - 1, WINDOW + Level.WINDOW):
        with pytest.raises(ValueError):
            expansion.feed(array(due))


def test_a_row_missing_in_the_store_is_found_by_advance() -> None:
    wheel = expanded(NOW, array(NOW, NOW, NOW, NOW + 5))
    with pytest.raises(CountMismatch, match="millisecond slot at") as caught:
        wheel.take(array(NOW, NOW), NOW + 5)
    assert (caught.value.start, caught.value.expected, caught.value.left) == (NOW, 3, 1)


def test_a_row_missing_in_a_coarse_slot_is_found_when_its_end_is_passed() -> None:
    wheel = Wheel.restore({WINDOW: 2})
    assert wheel.due(WINDOW + Level.WINDOW - 2) == 0
    assert wheel.due(WINDOW + Level.WINDOW - 1) == 2
    wheel.take(array(NOW), WINDOW + Level.WINDOW - 1)
    with pytest.raises(CountMismatch) as caught:
        wheel.advance(WINDOW + Level.WINDOW)
    assert (caught.value.level, caught.value.expected, caught.value.left) == (Level.WINDOW, 1, 1)


@pytest.mark.parametrize("rows", [1, 1_000])
@pytest.mark.parametrize("ahead", [0, 30_000, 300_000, 86_400_000])
def test_a_row_that_was_never_counted_cannot_be_removed(rows: int, ahead: int) -> None:
    wheel = expanded(NOW, np.full(rows, NOW + ahead, np.int64))
    with pytest.raises(CountMismatch) as caught:
        wheel.remove(np.full(rows + 1, NOW + ahead, np.int64))
    assert caught.value.left == -1


def test_restore_refuses_what_are_not_window_totals() -> None:
    for totals in ({WINDOW + 1: 1}, {WINDOW: -1}):
        with pytest.raises(ValueError):
            Wheel.restore(totals)


def test_18_million_rows_of_half_an_hour_need_less_than_1_mib() -> None:
    wheel = Wheel()
    batch = np.repeat(np.arange(WINDOW, WINDOW + Level.WINDOW, 1_800), 1_000)  # 1,000 distinct ms, 1,000 rows each
    tracemalloc.start()
    try:
        for _ in range(18):
            wheel.add(batch)
        for now in range(WINDOW, WINDOW + 60_000, 1_000):  # nothing is delivered: the backlog of a minute
            while (slot := wheel.expandable(now)) is not None:
                expansion = wheel.begin(slot)
                inside = batch[(batch >= slot.start) & (batch < slot.end)]
                for _ in range(18):
                    expansion.feed(inside)
                expansion.finish()
        del inside
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert wheel.total == 18_000_000
    assert held < 1 << 20
