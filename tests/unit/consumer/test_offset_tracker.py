"""The tracker of a partition, against a plain list; and the file of offsets."""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64encode
from pathlib import Path
from random import Random

import pytest
from aiokafka.structs import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from duemq.client.consumer.base import FetchPosition
from duemq.client.consumer.done_ranges import decode_ranges, done_ranges, encode_ranges
from duemq.client.consumer.kafka.offsets import FileOffsets
from duemq.client.consumer.work.offset_tracker import OffsetTracker
from duemq.model.errors import CorruptStore, StoreFailed
from tests.unit.consumer.test_consumer_values import Plain


class World:
    """A partition whose messages are pulled and done by one member after the other. Offsets have gaps: markers of
    transactions, and records that a filter skips."""

    def __init__(self, gaps: list[int]) -> None:
        self.offsets = [10 + sum(gaps[: n + 1]) - 1 for n in range(len(gaps))]
        self.end = 10 + sum(gaps)
        self.stored, self.stored_done = FetchPosition(10, 10), set[int]()
        self.begin()

    def begin(self) -> None:
        """A member gets the partition, with nothing but what was stored."""
        text = encode_ranges(self.stored.done, self.stored.commit, 4_000)
        self.tracker = OffsetTracker(self.stored.commit, decode_ranges(text, self.stored.commit))
        self.in_hand, self.done = list[int](), set(self.stored_done)

    def pull(self, most: int) -> None:
        records = [Plain((), None, b"", "t", 0, each) for each in self.offsets if each >= self.tracker.pull][:most]
        if records:
            rest = [record.offset for record in self.tracker.without_done(records)]
            assert {each.offset for each in records} - set(rest) == self.done.intersection(
                each.offset for each in records
            )
            self.tracker.pulled(dict.fromkeys(rest, 0), records[-1].offset + 1)
            self.in_hand += rest

    def store(self) -> None:
        self.stored, self.stored_done = self.tracker.position, set(self.done)


@given(st.data())
@pytest.mark.heavy
def test_what_is_stored_brings_back_what_is_not_done_and_nothing_else(data: st.DataObject) -> None:
    world = World(data.draw(st.lists(st.integers(1, 3), max_size=40)))
    for _ in range(data.draw(st.integers(0, 40))):
        match data.draw(st.sampled_from(["pull", "done", "done", "done", "store", "crash"])):
            case "pull":
                world.pull(data.draw(st.integers(1, 15)))
            case "done" if world.in_hand:
                offset = world.in_hand.pop(data.draw(st.integers(0, len(world.in_hand) - 1)))
                world.tracker.done(offset)
                world.done.add(offset)
            case "store":
                world.store()
            case "crash":
                world.begin()
        tracker = world.tracker
        assert tracker.commit == (min(world.in_hand) if world.in_hand else tracker.pull)
        assert len(tracker) == len(world.in_hand)
        undone = {each for each in world.offsets if each not in world.done}
        gaps = set(range(10, world.end)).difference(world.offsets)
        assert len(undone) <= tracker.undone(world.end) <= len(undone | {each for each in gaps if each >= tracker.pull})
    world.store()
    world.begin()
    world.pull(len(world.offsets))
    assert set(world.in_hand) == set(world.offsets) - world.done


@given(st.sets(st.integers(1, 400)), st.integers(0, 2**40), st.integers(-5, 60))
def test_ranges_are_cut_to_the_room_there_is(done: set[int], position: int, most: int) -> None:
    ranges = done_ranges([position, *(position + n for n in range(1, 401) if n not in done)], position + 401)
    assert {each - position for start, end in ranges for each in range(start, end)} == done
    assert decode_ranges(encode_ranges(ranges, position, 4_000), position) == ranges
    text = encode_ranges(ranges, position, most)
    read = decode_ranges(text, position)
    assert len(text) <= max(most, 0) and read == ranges[: len(read)]


def test_thousands_done_out_of_order_have_room_beside_an_offset() -> None:
    undone = sorted(Random(1).sample(range(1, 100_000), 2_000))
    ranges = done_ranges([0, *undone], 100_000)
    assert decode_ranges(encode_ranges(ranges, 0, 4_000), 0) == ranges


@pytest.mark.parametrize("text", ["", "A", "AAAA", "no text of ours", "____", "4_-3-w", "é"])
def test_a_text_that_is_none_of_ours_says_that_nothing_is_done(text: str) -> None:
    assert decode_ranges(text, 5) == ()


def test_a_text_cannot_ask_for_much_memory() -> None:
    bomb = zlib.compress(bytes(64 << 20), wbits=-zlib.MAX_WBITS)
    assert decode_ranges(urlsafe_b64encode(bomb).decode(), 0) == ()


A, B = TopicPartition("a", 0), TopicPartition("a", 1)


def test_offsets_are_kept_in_a_file(tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path, "billing", "host-1")
    assert offsets.load() == {}
    offsets.save({A: 5, B: 6})
    offsets.save({A: 7})
    assert FileOffsets(tmp_path, "billing", "host-1").load() == {A: 7, B: 6}
    assert FileOffsets(tmp_path, "billing", "host-2").load() == {}


def test_a_crash_leaves_the_offsets_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = FileOffsets(tmp_path, "billing", "host-1")
    offsets.save({A: 5})

    def fail(*_: object) -> None:
        raise OSError("the power is gone")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(StoreFailed):
        offsets.save({A: 6})
    assert FileOffsets(tmp_path, "billing", "host-1").load() == {A: 5}


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2, "offsets": {}}', '{"format": 1, "offsets": {"a": 5}}', "[]"])
def test_a_foreign_file_is_refused(text: str, tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path, "billing", "host-1")
    offsets.path.parent.mkdir()
    offsets.path.write_text(text)
    with pytest.raises(CorruptStore, match=r"host-1\.json"):
        offsets.load()
