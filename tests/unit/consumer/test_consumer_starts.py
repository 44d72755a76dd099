"""Where partitions begin, without a Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
)
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from duemq.client.consumer.kafka.parked_partitions import RECREATED, ParkedPartitions
from duemq.client.consumer.kafka.positions import metadata_of
from duemq.client.consumer.kafka.rebalance import Rebalance
from duemq.client.consumer.kafka.starts import Starts
from duemq.client.consumer.options import ConsumerOptions
from tests.support.consumer.fake_group import RETRY, T0, T1, Group, changes


def starts_of(kafka: Group, start: str | int = "last", first: Collection[str] = ("retry.g",)) -> Starts:
    return Starts(kafka, ConsumerOptions(start=start), first)


def begun(kafka: Group, starts: Starts, *partitions: TopicPartition) -> dict[TopicPartition, int]:
    return asyncio.run(starts.of_group("t", partitions, lambda: True))


@pytest.mark.parametrize(("start", "begins"), [("last", {T0: 20, T1: 20}), (5, {T0: 15, T1: 20})])
def test_a_group_begins_with_all_partitions_of_a_topic_at_once(start: str | int, begins: dict[Any, int]) -> None:
    """Also with that of another member, which waits: had it begun alone, nobody could tell it from a new one."""
    kafka = Group()
    assert begun(kafka, starts_of(kafka, start), T1) == {}
    assert not kafka.commits
    assert begun(kafka, starts_of(kafka, start), T0) == {T0: begins[T0]}
    assert {each: place.offset for each, place in kafka.commits.items()} == begins and kafka.requests == 1
    assert begun(kafka, starts_of(kafka, start), T1) == {T1: begins[T1]}


def test_a_partition_that_was_added_begins_at_its_first_record() -> None:
    kafka = Group()
    kafka.commits[T0] = OffsetAndMetadata(17, "")
    assert begun(kafka, starts_of(kafka), T0, T1) == {T0: 17, T1: 10}


def test_a_topic_that_the_group_waited_for_begins_at_its_first_record() -> None:
    """Also where the member that saw it missing is gone: it stands with the offset of the retries."""
    kafka = Group()
    starts = starts_of(kafka)
    starts.known_topics.add("t")
    assert begun(kafka, starts, T0, T1) == {T0: 10, T1: 10}
    kafka.commits[RETRY] = OffsetAndMetadata(3, metadata_of(3, None, ["t"]))
    assert begun(kafka, starts_of(kafka), T1) == {T1: 10}
    kafka.commits[RETRY] = OffsetAndMetadata(3, metadata_of(3, None, ["other"]))
    assert begun(kafka, starts_of(kafka), T0) == {T0: 20}


def test_a_group_does_not_begin_for_partitions_that_moved_meanwhile() -> None:
    kafka, still = Group(), iter([False])
    with pytest.raises(KafkaError):
        asyncio.run(starts_of(kafka).of_group("t", [T0], lambda: next(still)))
    assert not kafka.commits


def parking_of(kafka: Group, turned: Rebalance) -> ParkedPartitions:
    starts = starts_of(kafka)

    async def store(offsets: Mapping[TopicPartition, int], turn: int) -> None:
        await starts.commit(offsets, lambda: turned.turn == turn)

    return ParkedPartitions(kafka, starts, turned, store)


def parked(kafka: Group, partitions: Mapping[TopicPartition, int | None], lost: list[TopicPartition]) -> None:
    async def run() -> None:
        parking = parking_of(kafka, changes(lost))
        parking.park(partitions)
        assert kafka.paused == set(partitions)
        running = asyncio.create_task(parking.run())
        async with asyncio.timeout(10):
            while kafka.paused:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert not parking.parked
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()

    asyncio.run(run())


@pytest.mark.parametrize("error", [KafkaConnectionError(), TimeoutError(), KeyError("a bug")])
def test_a_partition_begins_when_brokers_are_back(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    kafka = Group()
    kafka.fails = [error] * 3
    parked(kafka, {T0: None, T1: None}, [])
    assert kafka.places == {T0: 20, T1: 20}
    assert caplog.text.count("start of partitions fails") == 1


@pytest.mark.parametrize(
    ("offset", "place", "told", "closed"),
    [
        (5, 10, "now starts at 10: records in between are lost", []),
        (15, 15, "", []),
        (21, 10, "topic t was recreated or truncated: the log of t-0 ends at 20, before offset 21", [T0]),
        (RECREATED, 10, "topic t was recreated or truncated: the log of t-0 is another one now", [T0]),
    ],
)
def test_an_offset_that_is_out_of_range(
    offset: int, place: int, told: str, closed: list[TopicPartition], caplog: pytest.LogCaptureFixture
) -> None:
    kafka, lost = Group(), list[TopicPartition]()
    parked(kafka, {T0: offset}, lost)
    assert (kafka.places[T0], lost) == (place, closed)
    assert kafka.commits.keys() == set(closed), "at once: an offset of the old log would skip records of the new one"
    assert told in caplog.text and bool(told) == bool(caplog.text)


def test_a_partition_without_a_leader_keeps_no_other_from_beginning() -> None:
    async def run() -> None:
        kafka, first_of = Group(), Group.beginning_offsets

        async def beginning_offsets(asked: list[TopicPartition]) -> dict[TopicPartition, int]:
            if T0 in asked:
                raise KafkaConnectionError("no leader")
            return await first_of(kafka, asked)

        kafka.beginning_offsets = beginning_offsets  # type: ignore[method-assign]
        parking = parking_of(kafka, changes([]))
        parking.park({T0: 5, T1: 5, RETRY: None})
        running = asyncio.create_task(parking.run())
        async with asyncio.timeout(10):
            while kafka.paused != {T0}:  # noqa: ASYNC110
                await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        assert kafka.places[T1] == 10

    asyncio.run(run())


def test_what_is_parked_goes_nowhere_after_a_rebalance() -> None:
    async def run() -> None:
        kafka, turned = Group(), changes([])
        parking = parking_of(kafka, turned)
        parking.park({T0: None})

        def move() -> None:
            turned.turn += 1

        kafka.on_ask = move
        running = asyncio.create_task(parking.run())
        async with asyncio.timeout(10):
            while parking.parked:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        assert kafka.places == {T0: 0} and kafka.paused == {T0} and not kafka.commits

    asyncio.run(run())
