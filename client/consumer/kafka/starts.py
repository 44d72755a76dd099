"""Decides where a partition without an offset starts.

`ConsumerOptions.start` is meant for partitions that existed when the group started. Later ones are read from their
first record: a partition added to a topic, a topic created after the group subscribed to it, and a topic that was
deleted and recreated. To distinguish them, a group starts all partitions of a topic at once: the member with the first
partition commits the starting offsets of all partitions in one request. So the group has an offset for every partition
that existed then. If a partition has no offset but others of its topic do, it is new.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import CommitFailedError
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from duemq.bus.kafka.aiokafka_internals import client_of, commit_offsets, committed_offsets
from duemq.bus.kafka.requests.topic_ids import topic_ids
from duemq.client.consumer.kafka.positions import metadata_of, topics_in
from duemq.client.consumer.options import ConsumerOptions
from duemq.client.http.times import to_ms

log = logging.getLogger(__name__)

_ASK_S = 10.0


class Starts:
    """The starting offsets of one aiokafka consumer. `first`: topics that start at their first record despite the
    options.

    Methods raise KafkaError or TimeoutError if brokers are unreachable.
    """

    def __init__(self, kafka: AIOKafkaConsumer, options: ConsumerOptions, first: Collection[str]) -> None:
        self._kafka, self._start, self._first = kafka, options.start, frozenset(first)
        self.known_topics: set[str] = set()
        """Topics that the group has subscribed to before, whether they exist or not. Partitions of these topics that
        have no offset are new."""
        self.ids: dict[str, str] = {}
        """Topic ids, as last read from the brokers."""

    @property
    def mark(self) -> TopicPartition | None:
        """The partition whose commits contain `known_topics`, for members that start later."""
        return TopicPartition(min(self._first), 0) if self._first else None

    async def of_group(
        self, topic: str, partitions: Collection[TopicPartition], still: Callable[[], bool]
    ) -> dict[TopicPartition, int]:
        """Offsets at which these partitions of one topic continue or start. Partitions missing from the result are left
        to the member that starts the topic.

        `still`: returns whether this member has kept the partitions since the call.
        """
        numbers = self._kafka.partitions_for_topic(topic) or set()
        every = sorted({*partitions, *(TopicPartition(topic, number) for number in numbers)})
        commits = {each: place.offset for each, place in (await self.places(every)).items()}
        if any(each in commits for each in every):
            self.known_topics.add(topic)
        offsets = {each: commits[each] for each in partitions if each in commits}
        new_partitions = [each for each in partitions if each not in commits]
        if not new_partitions:
            return offsets
        if self.is_new(topic):
            firsts = await self.firsts(new_partitions)
            log.info("consumer starts %s at the first record", named(new_partitions), extra={"action": "begin"})
            return offsets | firsts
        if every[0] not in new_partitions:
            return offsets
        begins = await self.by_options(every)
        await self.commit(begins, still)
        self.known_topics.add(topic)
        log.info("group starts %s at %s", named(every), self._start, extra={"action": "begin"})
        return offsets | {each: begins[each] for each in new_partitions}

    def is_new(self, topic: str) -> bool:
        """Whether a partition of the topic without an offset starts at its first record."""
        return self._start == "first" or topic in self._first or topic in self.known_topics

    async def firsts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        async with asyncio.timeout(_ASK_S):
            offsets: dict[TopicPartition, int] = await self._kafka.beginning_offsets(list(partitions))
            return offsets

    async def lasts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        async with asyncio.timeout(_ASK_S):
            offsets: dict[TopicPartition, int] = await self._kafka.end_offsets(list(partitions))
            return offsets

    async def by_options(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Offsets chosen by the option `start`, for partitions that existed when the group started."""
        if self._start == "first":
            return await self.firsts(partitions)
        # Before the times are looked up, so that no record written in between is skipped.
        lasts = await self.lasts(partitions)
        if self._start == "last":
            return lasts
        since = to_ms(self._start) if isinstance(self._start, datetime) else int(self._start)
        async with asyncio.timeout(_ASK_S):
            offsets = await self._kafka.offsets_for_times(dict.fromkeys(partitions, since))
        return {each: last if offsets[each] is None else offsets[each].offset for each, last in lasts.items()}

    async def places(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets for these partitions, and for the mark."""
        query = [*partitions, *([self.mark] if self.mark else [])]
        async with asyncio.timeout(_ASK_S):
            commits: Mapping[TopicPartition, OffsetAndMetadata] = await committed_offsets(self._kafka, query)
        if self.mark in commits:
            self.known_topics |= topics_in([commits[self.mark].metadata], {each.topic for each in query})
        return {each: place for each, place in commits.items() if place.offset >= 0}

    async def commit(self, begins: Mapping[TopicPartition, int], still: Callable[[], bool]) -> None:
        """Commit the offsets at which partitions start, including other members' partitions: those members wait for
        the commit. Does not use aiokafka's `commit`, which would retry after a rebalance and might overwrite newer
        offsets of those members."""
        if unknown := {each.topic for each in begins} - self.ids.keys():
            async with asyncio.timeout(_ASK_S):
                self.ids |= await topic_ids(client_of(self._kafka), unknown)
        offsets = {
            each: OffsetAndMetadata(offset, metadata_of(offset, self.ids.get(each.topic), commit=offset))
            for each, offset in begins.items()
        }
        await commit_once(self._kafka, offsets, still)


async def commit_once(
    kafka: AIOKafkaConsumer, offsets: Mapping[TopicPartition, OffsetAndMetadata], still: Callable[[], bool]
) -> None:
    """Commit in one request, as the group's current member, if `still` returns True. Raises KafkaError or
    TimeoutError."""

    def check() -> None:
        if not still():
            raise CommitFailedError("partitions moved in between")

    async with asyncio.timeout(_ASK_S):
        await commit_offsets(kafka, offsets, check)


def named(partitions: Collection[TopicPartition]) -> str:
    """Partitions of one topic, for log lines."""
    numbers = sorted(each.partition for each in partitions)
    topic = next(iter(partitions)).topic
    return f"{topic}-{numbers[0]}" if len(numbers) == 1 else f"{topic}, partitions {', '.join(map(str, numbers))}"
