"""Kafka as a plug of the contract suite: topics get names of the test's own, since all tests share one broker."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from duemq.bus.base import (
    AppendResult,
    AppendResults,
    Batches,
    BlockingTransaction,
    Bus,
    GroupPosition,
    Subscription,
    TopicInfo,
    TopicNames,
    TopicState,
    unknown_topics,
    wall_clock,
)
from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.options import KafkaOptions
from duemq.bus.kafka.produce.kafka_committer import KafkaCommitter
from duemq.model.messages.names import CursorName
from duemq.model.messages.record import Partition, StoredRecord
from tests.support.patience import SERVERS_S


class RenamedCommitter:
    def __init__(self, inner: KafkaCommitter, bus: RenamedBus) -> None:
        self._inner, self._bus = inner, bus

    async def commit(self, batches: Batches) -> AppendResults:
        return self._bus.back(await self._inner.commit(self._bus.there(batches)))

    async def close(self) -> None:
        await self._inner.close()


class RenamedBus:
    """Adds `suffix` to all names.

    With `own` all topics are as duemq's own are, which are followed and not asked for. Their readers have to wait for
    what was appended, so that is done here: the suite asks for it at once.
    """

    def __init__(self, inner: KafkaBus, suffix: str, own: dict[str, int] | None) -> None:
        self.inner, self._suffix, self._own = inner, suffix, own

    def there(self, batches: Batches) -> Batches:
        return {(topic + self._suffix, partition): frames for (topic, partition), frames in batches.items()}

    def back(self, landed: AppendResults) -> AppendResults:
        return {(topic.removesuffix(self._suffix), partition): where for (topic, partition), where in landed.items()}

    @property
    def ahead(self) -> RenamedBus:
        return self

    async def append(self, batches: Batches, *, for_answer: bool = False) -> AppendResults:
        there = self.there(batches)
        landed = await self.inner.append(there)
        for (topic, partition), where in landed.items():
            if self.inner.fetcher.follows((topic, partition)):
                await self._reached(topic, partition, where.offset(len(there[topic, partition]) - 1) + 1)
        return self.back(landed)

    async def read(
        self, topic: str, partition: int, offset: int, max_records: int, max_bytes: int = 8 << 20
    ) -> list[StoredRecord]:
        topic += self._suffix
        if self._own is None or topic not in self.inner.own:
            return await self.inner.read(topic, partition, offset, max_records, max_bytes)
        end = await self.inner.end_offset(topic, partition)
        await self.inner.read(topic, partition, offset, max_records, max_bytes)  # the first read begins to follow
        if partition < self.inner.own[topic]:
            await self._reached(topic, partition, end)
        return await self.inner.read(topic, partition, offset, max_records, max_bytes)

    async def _reached(self, topic: str, partition: int, end: int) -> None:
        subscription = self.inner.subscribe(topic, partition)
        async with asyncio.timeout(SERVERS_S):
            while self.inner.reach(topic, partition) < end:
                await subscription.wait(1)
        subscription.close()

    async def end_offset(self, topic: str, partition: int) -> int:
        return await self.inner.end_offset(topic + self._suffix, partition)

    async def sure_end(self, topic: str, partition: int, *, committed: bool = True) -> int:
        return await self.inner.sure_end(topic + self._suffix, partition, committed=committed)

    async def start_offset(self, topic: str, partition: int) -> int:
        return await self.inner.start_offset(topic + self._suffix, partition)

    async def first_since(self, topic: str, partition: int, timestamp: int) -> int:
        return await self.inner.first_since(topic + self._suffix, partition, timestamp)

    def reach(self, topic: str, partition: int) -> int:
        return self.inner.reach(topic + self._suffix, partition)

    def subscribe(self, topic: str, partition: int | None = None) -> Subscription:
        return self.inner.subscribe(topic + self._suffix, partition)

    @property
    def marker_offsets(self) -> int:
        return self.inner.marker_offsets

    async def committer(self, name: str, written: TopicNames = unknown_topics) -> RenamedCommitter:
        return RenamedCommitter(await self.inner.committer(name), self)

    def topic_state(self, topic: str) -> TopicState | None:
        return self.inner.topic_state(topic + self._suffix)

    async def look_up_topics(self, topics: Collection[str]) -> None:
        await self.inner.look_up_topics([topic + self._suffix for topic in topics])

    async def create_topic(self, topic: str, partitions: int) -> TopicInfo:
        name = topic + self._suffix
        if self._own is None or not 1 <= partitions <= 0xFFFF:
            return self._named(await self.inner.create_topic(name, partitions))
        return self._named(await self.inner.create_log(name, self._own.setdefault(name, partitions)))

    async def create_log(
        self, topic: str, partitions: int, *, expires: bool = True, in_ids: bool = False, vital: bool = True
    ) -> TopicInfo:
        name = topic + self._suffix
        return self._named(await self.inner.create_log(name, partitions, expires=expires, in_ids=in_ids, vital=vital))

    async def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        ids = await self.inner.topic_ids([topic + self._suffix for topic in topics])
        return {name.removesuffix(self._suffix): id_ for name, id_ in ids.items()}

    def incarnation(self, topic: str) -> int:
        return self.inner.incarnation(topic + self._suffix)

    def misfits(self) -> Mapping[str, str]:
        return self.inner.misfits()

    def blocked(self) -> Mapping[Partition, BlockingTransaction]:
        return self.inner.blocked()

    async def topic(self, topic: str) -> TopicInfo | None:
        found = await self.inner.topic(topic + self._suffix)
        return None if found is None else self._named(found)

    async def topics(self) -> list[TopicInfo]:
        return [self._named(found) for found in await self.inner.topics() if found.name.endswith(self._suffix)]

    async def trim(self, topic: str, partition: int, before_offset: int) -> None:
        await self.inner.trim(topic + self._suffix, partition, before_offset)

    async def trim_older_than(self, topic: str, timestamp: int) -> None:
        await self.inner.trim_older_than(topic + self._suffix, timestamp)

    async def reclaim(self) -> None:
        await self.inner.reclaim()

    async def checkpoint(self, into: Path) -> bool:
        return await self.inner.checkpoint(into)

    def disk_bytes(self) -> int:
        return self.inner.disk_bytes()

    def trouble(self) -> str | None:
        return self.inner.trouble()

    def troubles(self) -> Mapping[Partition, str]:
        return {(topic.removesuffix(self._suffix), at): why for (topic, at), why in self.inner.troubles().items()}

    async def clock_offset_ms(self) -> float:
        return await self.inner.clock_offset_ms()

    async def get_consumer_cursor(self, topic: str, consumer: CursorName) -> bytes | None:
        return await self.inner.get_consumer_cursor(topic + self._suffix, consumer)

    async def set_consumer_cursor(self, topic: str, consumer: CursorName, cursor: bytes) -> None:
        await self.inner.set_consumer_cursor(topic + self._suffix, consumer, cursor)

    async def readers(self, topic: str) -> list[str]:
        readers = await self.inner.readers(topic + self._suffix)
        return [reader.removesuffix(self._suffix) for reader in readers]

    async def begin_group(self, topic: str, group: str, offsets: Sequence[int]) -> None:
        await self.inner.begin_group(topic + self._suffix, group, offsets)

    async def group_position(self, topic: str, group: str, partition: int) -> GroupPosition | None:
        position = await self.inner.group_position(topic + self._suffix, group, partition)
        return None if position is None else position._replace(topic=topic)

    async def close(self) -> None:
        await self.inner.close()

    def _named(self, info: TopicInfo) -> TopicInfo:
        return replace(info, name=info.name.removesuffix(self._suffix))


class KafkaPlug:
    largest, at_once = 3 << 20, False

    def __init__(self, bootstrap: str, *, own: bool, transactions: str) -> None:
        self._suffix = f"-{secrets.token_hex(4)}"
        self._options = KafkaOptions(
            bootstrap,
            cluster=f"contract{self._suffix}",
            request_timeout_ms=30_000,  # for busy machines
            transaction_timeout_ms=60_000,
            transactions=transactions,
        )
        self._own: dict[str, int] | None = {} if own else None
        self._bus: RenamedBus | None = None

    async def open(self, fault: Callable[[str], None] | None = None) -> Bus:
        assert fault is None
        await self.close()
        inner = await KafkaBus.open(self._options)
        self._bus = RenamedBus(inner, self._suffix, self._own)
        for name, partitions in (self._own or {}).items():
            await inner.create_log(name, partitions)
        return self._bus

    async def pass_time(self, landed: AppendResult) -> None:
        """Until what is appended has a later time than this."""
        await asyncio.sleep(max(landed.timestamp + 1 - wall_clock(), 0) / 1000 + 0.001)

    async def close(self) -> None:
        if self._bus is not None:
            await self._bus.close()
