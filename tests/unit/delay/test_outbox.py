"""What a cycle sends, and to which partitions."""

import sys
from types import FrameType
from typing import Any

import pytest

from duemq.bus.partitioner import partition_of
from duemq.delay.core.cycle import Due
from duemq.delay.core.outbox import Outbox
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import make_key
from duemq.model.messages.message import Draft, schedule_frame
from duemq.model.messages.row import frame_in, row_of

IDS = IdCodec(b"k" * 32)

# From the tests of org.apache.kafka.common.utils.Utils.
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", MURMUR2)
def test_keys_go_where_kafkas_own_partitioner_sends_them(key: bytes) -> None:
    assert partition_of(key, 1 << 31) == MURMUR2[key] & 0x7FFF_FFFF
    assert partition_of(key, 7) == (MURMUR2[key] & 0x7FFF_FFFF) % 7


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 63, 64, 65, 60_000, 60_001, 60_002, 60_003])
def test_keys_of_any_length_are_hashed_as_in_java(size: int) -> None:
    key = (b"duemq" * (size // 5 + 1))[:size]
    assert partition_of(key, 1 << 31) == plain_murmur2(key) & 0x7FFF_FFFF


def plain_murmur2(data: bytes) -> int:
    """org.apache.kafka.common.utils.Utils.murmur2, word by word."""
    m, mask = 0x5BD1E995, 0xFFFF_FFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def test_a_long_key_is_not_hashed_byte_by_byte_in_python() -> None:
    """A cycle full of keys of 60 KB would stop the event loop for seconds."""
    assert lines_run(bytes(60_000)) == lines_run(bytes(6))


def lines_run(key: bytes) -> int:
    """How many lines of Python `partition_of` takes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        partition_of(key, 12)
    finally:
        sys.settrace(before)
    assert count > 0
    return count


def due(offset: int, topic: str, key: bytes | None = None) -> Due:
    frame = schedule_frame(Draft(topic, b"%d" % offset, 5, key), 5)
    return make_key(5, offset, 0), row_of(frame, IDS.issue_bytes(0, 5, offset))


def test_unkeyed_messages_of_a_cycle_share_a_partition_that_rotates() -> None:
    messages = [due(number, "many") for number in range(4)]
    for turn in range(7):
        outbox = Outbox(turn, {"many": 3})
        outbox.add(messages, {b"many"})
        assert outbox.batches == {("many", turn % 3): [frame_in(row) for _, row in messages]}


def test_keyed_messages_go_by_their_key_in_order() -> None:
    messages = [due(number, "many", b"k%d" % (number % 2)) for number in range(6)] + [due(6, "one", b"k")]
    outbox = Outbox(0, {"many": 3, "one": 1})
    outbox.add(messages, {b"many", b"one"})
    filled = {where: frames for where, frames in outbox.batches.items() if frames}
    expected: dict[tuple[str, int], list[bytes]] = {("one", 0): [frame_in(messages[6][1])]}
    for number in range(6):
        where = ("many", partition_of(b"k%d" % (number % 2), 3))
        expected.setdefault(where, []).append(frame_in(messages[number][1]))
    assert filled == expected
    assert outbox.keys["many"] == [key for key, _ in messages[:6]]


@pytest.mark.parametrize("topics", [{b"gone"}, {b"gone", b"lost"}])
def test_nothing_goes_to_topics_that_refused_all_of_their_messages(topics: set[bytes]) -> None:
    outbox = Outbox(0, {})
    outbox.add([], topics)
    assert not any(outbox.batches.values())


def test_dead_letters_are_not_counted_as_deliveries() -> None:
    outbox = Outbox(4, {"dlq": 3})
    outbox.add_frame("dlq", None, b"a")
    outbox.add_frame("dlq", b"21", b"b")
    assert outbox.batches == {("dlq", 1): [b"a"], ("dlq", partition_of(b"21", 3)): [b"b"]}
    assert not outbox.keys


def test_a_dead_letter_avoids_the_partition_of_its_key_where_that_takes_nothing() -> None:
    closed = partition_of(b"21", 3)
    for turn in range(3):
        outbox = Outbox(turn, {"dlq": 3}, {"dlq": {closed}})
        outbox.add_frame("dlq", b"21", b"a")
        outbox.add_frame("dlq", None, b"b")
        ((where, frames),) = outbox.batches.items()
        assert where[1] != closed and frames == [b"a", b"b"]
