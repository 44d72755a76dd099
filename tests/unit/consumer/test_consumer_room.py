"""How much is pulled, and of which partitions."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq.client.consumer.options import ConsumerOptions
from duemq.client.consumer.work.room import Room, reserved, shared


@settings(max_examples=40)
@given(st.data())
def test_a_partition_that_is_stuck_leaves_the_others_their_share(data: st.DataObject) -> None:
    """Whoever gets what is pulled, and whatever is never done: nobody else's reserve is touched, nor the bound."""
    partitions = data.draw(st.integers(1, 12))
    limit = data.draw(st.integers(2 * partitions, 500))
    counts = dict.fromkeys(range(partitions), 0)
    own = reserved(limit, partitions)
    for _ in range(data.draw(st.integers(1, 40))):
        most, held = shared(max(min(limit - sum(counts.values()), 1_000), 1), limit, counts)
        open_ones = sorted(counts.keys() - held)
        if most <= 0:
            assert sum(counts.values()) >= limit * 3 / 4  # nearly full
            emptied = data.draw(st.sampled_from(sorted(counts)))
            counts[emptied] = 0
            assert shared(1, limit, counts)[0] == 1  # one that is empty can go on, whatever the others have
            continue
        lucky = data.draw(st.sampled_from(open_ones))
        counts[lucky] += data.draw(st.integers(0, most))
        assert sum(counts.values()) <= limit
        for each, count in counts.items():
            room = limit - sum(counts.values())
            assert room >= own - count, each
        if data.draw(st.booleans()):
            done = data.draw(st.sampled_from(sorted(counts)))
            counts[done] = data.draw(st.integers(0, counts[done]))


def test_one_partition_may_have_all_the_room() -> None:
    assert shared(1_000, 4_000, {"a": 3_500}) == (500, frozenset())
    assert shared(1_000, 4_000, {"a": 3_900})[0] == 0  # nearly: a few messages are not worth a pull
    assert shared(7, 4_000, {}) == (7, frozenset())


def test_more_partitions_than_room_get_one_message_each() -> None:
    assert shared(10, 4, {"a": 1, "b": 0, "c": 0}) == (1, frozenset())
    assert shared(10, 4, {"a": 2, "b": 0, "c": 0}) == (1, frozenset({"a"}))


def room(in_place: bool, **options: int) -> Room:
    return Room(ConsumerOptions(**options), in_place)  # type: ignore[arg-type]


def test_where_nothing_stays_in_hand_only_the_whole_counts() -> None:
    here = room(False, max_in_hand=100)
    here.add(95, 950)
    assert here.admitted({"a": range(95), "b": ()}, lambda: {"a", "b"}) == (5, frozenset())
    here.add(5, 50)
    assert here.admitted({}, set[str]) == (0, frozenset())


def test_where_messages_are_tried_again_in_place_a_partition_has_its_share() -> None:
    here = room(True, max_in_hand=100)
    here.add(68, 0)
    assert here.admitted({"a": range(68)}, lambda: {"a", "b"}) == (7, frozenset())
    here.add(7, 0)
    assert here.admitted({"a": range(75)}, lambda: {"a", "b"}) == (25, frozenset({"a"}))
    # As much in bytes: those in hand are large.
    here = room(True, max_in_hand=10_000, max_in_hand_bytes=100_000)
    here.add(75, 75_000)
    assert here.admitted({"a": range(75)}, lambda: {"a", "b"}) == (25, frozenset({"a"}))


@pytest.mark.anyio
@pytest.mark.parametrize(("in_place", "removed"), [(False, 25), (True, 6)])
async def test_it_is_told_when_there_is_room(in_place: bool, removed: int) -> None:
    """In place a few are enough: they may be all that one partition had, and the others are stuck."""
    here = room(in_place, max_in_hand=100)
    here.add(100, 1_000)
    waiting = asyncio.create_task(here.wait(4, 300))
    await asyncio.sleep(0)
    for _ in range(removed - 1):
        assert here.full
        here.remove(10)
    assert not here.there.is_set()
    here.remove(10)
    assert await waiting and not here.full
    assert not await here.wait(4, 0)
    waiting = asyncio.create_task(here.wait(4, 300))
    await asyncio.sleep(0)
    here.open()
    assert await waiting
