"""Looking into partitions, with brokers that answer as Kafka does when it is inconvenient."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from aiokafka import errors
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.structs import TopicPartition

from duemq.client.consumer.work.tags import TagFilter
from duemq.client.lag.brokers import ConsumerGroup, FetchedValues, Topics
from duemq.client.lag.reader import LagReader
from duemq.client.lag.scan import Scan
from duemq.client.lag.values import FirstMessage, GroupState, Matches, OffsetAndTime, PartitionEnds, PartitionLag
from duemq.model.errors import LogFailed

HERE, THERE = TopicPartition("orders", 0), TopicPartition("orders", 1)


def batch(base: int, *tags: bytes | None) -> bytes:
    """Records at `base` and after it; None leaves an offset out, as compaction does. Their time is 1000 + offset."""
    builder: Any = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for place, tag in enumerate(tags):
        if tag is not None:
            assert builder.append(place, 1000 + base + place, None, b"value", [("tags", tag)])
    raw = bytearray(builder.build())
    raw[:8] = base.to_bytes(8, "big")  # the checksum does not cover it
    return bytes(raw)


class FakeBrokers:
    """One batch for each request, as large ones come; `hidden` partitions come only when asked for alone."""

    def __init__(self, logs: Mapping[TopicPartition, list[bytes]]) -> None:
        self.logs = {
            where: [(int.from_bytes(raw[:8], "big"), raw) for raw in batches] for where, batches in logs.items()
        }
        self.errors: dict[TopicPartition, Any] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.crowded = False
        self.asked: list[dict[TopicPartition, int]] = []

    async def fetch(self, wanted: Mapping[TopicPartition, int], max_bytes: int) -> dict[TopicPartition, FetchedValues]:
        self.asked.append(dict(wanted))
        assert len(self.asked) < 1000
        found = {}
        for number, (where, offset) in enumerate(wanted.items()):
            start = self.starts.get(where, 0)
            if offset < start:
                found[where] = FetchedValues(errors.OffsetOutOfRangeError, start, [], b"")
            elif where in self.errors:
                found[where] = FetchedValues(self.errors[where], -1, [], b"")
            elif self.crowded and number:
                found[where] = FetchedValues(None, start, [], b"")
            else:
                raw = next((raw for base, raw in self.logs[where] if base + last_of(raw) >= offset), b"")
                found[where] = FetchedValues(None, start, [], raw)
        return found


def last_of(raw: bytes) -> int:
    return int.from_bytes(raw[23:27], "big")


def scan_of(brokers: FakeBrokers, tags: str = "*", max_offsets: int = 10_000) -> Scan:
    return Scan(brokers, TagFilter.parse(tags), max_offsets)  # type: ignore[arg-type]


def first(brokers: FakeBrokers, start: int, end: int) -> tuple[FirstMessage | None, Scan]:
    scan = scan_of(brokers)
    asyncio.run(scan.firsts([(HERE, start, end)]))
    return scan.first(HERE, start), scan


LOG = [batch(0, b"a", b"b"), batch(2, b"a", None, b"b"), batch(9, b"b", b"b")]


def test_the_first_message_at_or_after_an_offset() -> None:
    brokers = FakeBrokers({HERE: LOG})
    for start, offset in ((0, 0), (1, 1), (3, 4), (5, 9), (10, 10)):
        seen, scan = first(brokers, start, 11)
        assert seen == FirstMessage(offset, 1000 + offset) and not scan.unreadable
    assert first(brokers, 5, 9)[0] is None  # the next one is past the end that was asked for
    assert first(brokers, 11, 12)[0] is None
    asked = len(brokers.asked)
    assert first(brokers, 7, 7)[0] is None and len(brokers.asked) == asked


def test_two_offsets_of_a_partition_and_two_partitions() -> None:
    brokers = FakeBrokers({HERE: LOG, THERE: LOG})
    brokers.crowded = True
    scan = scan_of(brokers)
    asyncio.run(scan.firsts([(HERE, 0, 11), (HERE, 3, 11), (THERE, 5, 11), (THERE, 11, 12)]))
    found = [scan.first(*key) for key in ((HERE, 0), (HERE, 3), (THERE, 5), (THERE, 11))]
    assert found == [FirstMessage(0, 1000), FirstMessage(4, 1004), FirstMessage(9, 1009), None]


def test_retention_at_work_meanwhile() -> None:
    brokers = FakeBrokers({HERE: LOG})
    brokers.starts[HERE] = 4
    seen, scan = first(brokers, 0, 11)
    assert seen == FirstMessage(4, 1004) and not scan.unreadable
    brokers.starts[HERE] = 11
    assert first(brokers, 0, 11)[0] is None


@pytest.mark.parametrize("error", [errors.TopicAuthorizationFailedError, errors.OffsetOutOfRangeError])
def test_what_cannot_be_read_is_not_taken_for_empty(error: Any) -> None:
    brokers = FakeBrokers({HERE: LOG, THERE: LOG})
    brokers.errors[HERE] = error
    scan = scan_of(brokers)
    asyncio.run(scan.firsts([(HERE, 0, 11), (THERE, 0, 11)]))
    assert scan.unreadable == {HERE} and scan.first(THERE, 0) == FirstMessage(0, 1000)
    asyncio.run(scan.count({HERE: (0, 11)}))


def test_a_damaged_batch_is_said() -> None:
    damaged = bytearray(LOG[0])
    damaged[-1] ^= 1
    with pytest.raises(LogFailed, match=r"orders-0 at offset 0"):
        first(FakeBrokers({HERE: [bytes(damaged)]}), 0, 2)


def test_all_are_counted() -> None:
    brokers = FakeBrokers({HERE: LOG, THERE: LOG})
    for tags, (start, end), messages in (
        ("a", (0, 11), 2),
        ("b", (1, 10), 3),
        ("a || b", (0, 11), 6),
        ("*", (3, 9), 1),
    ):
        found = asyncio.run(scan_of(brokers, tags).count({HERE: (start, end), THERE: (11, 11)}))
        assert found == {HERE: Matches(messages, True), THERE: Matches(0, True)}, (tags, start, end)


def test_of_many_the_oldest_are_counted() -> None:
    """Four of five offsets hold a message, and one of five the tag."""
    log = [batch(5 * number, b"a", b"b", None, b"b", b"b") for number in range(2000)]
    brokers = FakeBrokers({HERE: log, THERE: log})
    spans = {HERE: (0, 10_000), THERE: (2_000, 2_050)}
    found = asyncio.run(scan_of(brokers, "a", max_offsets=400).count(spans))
    assert found == {HERE: Matches(70, False), THERE: Matches(10, True)}
    assert asyncio.run(scan_of(brokers, "a", max_offsets=999).count({HERE: (0, 1_000)})) == {HERE: Matches(200, True)}


def test_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    log = [batch(5 * number, b"a", b"b", b"b", b"b", b"b") for number in range(2000)]
    monkeypatch.setattr("duemq.client.lag.scan._MAX_BYTES", 50 * len(log[0]))
    brokers = FakeBrokers({HERE: log})
    assert asyncio.run(scan_of(brokers, "a").count({HERE: (0, 10_000)})) == {HERE: Matches(50, False)}
    assert len(brokers.asked) == 50


class FakeCluster(FakeBrokers):
    """With one group, `g`, and partitions that are there, have no leader, are hidden, or are gone."""

    async def describe(self, groups: list[str]) -> dict[str, ConsumerGroup]:
        return {group: ConsumerGroup("Empty", 0, frozenset()) for group in groups}

    async def commits(self, groups: list[str]) -> dict[str, dict[TopicPartition, OffsetAndTime]]:
        topics = ("orders", "orders"), ("hidden", "gone")
        places = {
            TopicPartition(topic, number): OffsetAndTime(1, 2) for names in topics for number, topic in enumerate(names)
        }
        return dict.fromkeys(groups, places)

    async def topics(self, names: set[str]) -> Topics:
        assert names == {"orders", "hidden", "gone"}
        return Topics({HERE: 1, THERE: 1}, frozenset({TopicPartition("orders", 2)}), frozenset({"hidden"}))

    async def ends(self, partitions: set[TopicPartition]) -> dict[TopicPartition, PartitionEnds]:
        return dict.fromkeys(partitions, PartitionEnds(0, 11))


def read_by(brokers: FakeCluster, tags: str | None) -> dict[tuple[str, int], PartitionLag]:
    reader = LagReader("nowhere:1", clock=lambda: 2000)
    reader._brokers = brokers  # type: ignore[assignment]
    (found,) = asyncio.run(reader.read(["g"], tags=tags))
    return {(one.topic, one.partition): one for topic in found.topics for one in topic.partitions}


def test_partitions_that_cannot_be_read_leave_the_others_readable() -> None:
    brokers = FakeCluster({HERE: LOG, THERE: LOG})
    brokers.errors[THERE] = errors.TopicAuthorizationFailedError
    found = read_by(brokers, None)
    assert {place: one.state for place, one in found.items()} == {
        ("orders", 0): GroupState.OK, ("orders", 1): GroupState.UNREADABLE, ("orders", 2): GroupState.UNREADABLE,
        ("hidden", 0): GroupState.UNREADABLE, ("gone", 1): GroupState.GONE,
    }  # fmt: skip
    one = found["orders", 0]
    assert (one.lag, one.inflight, one.available, one.lag_ms, one.available_ms) == (10, 1, 9, 999, 998)
    assert all(one.lag is None for place, one in found.items() if place != ("orders", 0))


def test_what_becomes_unreadable_while_it_is_counted_is_not_told() -> None:
    class Late(FakeCluster):
        async def fetch(
            self, wanted: Mapping[TopicPartition, int], max_bytes: int
        ) -> dict[TopicPartition, FetchedValues]:
            if max_bytes > 100_000:  # now all are read, to be counted
                self.errors[THERE] = errors.TopicAuthorizationFailedError
            return await super().fetch(wanted, max_bytes)

    found = read_by(Late({HERE: LOG, THERE: LOG}), "b")
    assert found["orders", 0].matching == Matches(4, True) and found["orders", 1].matching is None
