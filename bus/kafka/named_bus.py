"""The log of a cluster with a prefix. Only this module translates between topic names inside duemq and on the
brokers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from duemq.bus.base import (
    AppendResults,
    Batches,
    BlockingTransaction,
    Bus,
    Committer,
    GroupPosition,
    PartlyAppended,
    Subscription,
    TopicInfo,
    TopicNames,
    TopicState,
    UnknownTopic,
    WriteRefused,
    unknown_topics,
)
from duemq.model.messages.names import CursorName
from duemq.model.messages.record import Partition, StoredRecord
from duemq.model.topics.topic_names import TopicNames as NamesOnBrokers

T = TypeVar("T")


class NamedBus:
    """See `Bus`. Sentences about topics use the names on the brokers, so that operators can find the topics."""

    def __init__(self, inner: Bus, names: NamesOnBrokers) -> None:
        self._inner, self._names, self._name = inner, names, names.on_brokers

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (UnknownTopic, WriteRefused) as error:
            error.topic = self._names.own(error.topic) or error.topic
            raise
        except PartlyAppended as error:
            raise PartlyAppended(self._by_own_name(error.results), self._by_own_name(error.failures)) from error

    def _batches(self, batches: Batches) -> Batches:
        return {(self._name(topic), partition): frames for (topic, partition), frames in batches.items()}

    def _by_own_name(self, parts: Mapping[Partition, T]) -> dict[Partition, T]:
        return {(self._names.own(topic) or topic, number): part for (topic, number), part in parts.items()}

    def _info(self, info: TopicInfo) -> TopicInfo:
        return replace(info, name=self._names.own(info.name) or info.name)

    @property
    def ahead(self) -> NamedBus:
        return self

    async def append(self, batches: Batches, *, for_answer: bool = False) -> AppendResults:
        with self._errors():
            return self._by_own_name(await self._inner.append(self._batches(batches)))

    async def read(
        self, topic: str, partition: int, offset: int, max_records: int, max_bytes: int = 8 << 20
    ) -> list[StoredRecord]:
        return await self._inner.read(self._name(topic), partition, offset, max_records, max_bytes)

    async def end_offset(self, topic: str, partition: int) -> int:
        return await self._inner.end_offset(self._name(topic), partition)

    async def sure_end(self, topic: str, partition: int, *, committed: bool = True) -> int:
        return await self._inner.sure_end(self._name(topic), partition, committed=committed)

    async def start_offset(self, topic: str, partition: int) -> int:
        return await self._inner.start_offset(self._name(topic), partition)

    async def first_since(self, topic: str, partition: int, timestamp: int) -> int:
        return await self._inner.first_since(self._name(topic), partition, timestamp)

    def reach(self, topic: str, partition: int) -> int:
        return self._inner.reach(self._name(topic), partition)

    def subscribe(self, topic: str, partition: int | None = None) -> Subscription:
        return self._inner.subscribe(self._name(topic), partition)

    @property
    def marker_offsets(self) -> int:
        return self._inner.marker_offsets

    async def committer(self, name: str, written: TopicNames = unknown_topics) -> Committer:
        def written_on_brokers() -> Set[str] | None:
            topics = written()
            return None if topics is None else {self._name(topic) for topic in topics}

        return _NamedCommitter(await self._inner.committer(name, written_on_brokers), self)

    def topic_state(self, topic: str) -> TopicState | None:
        return self._inner.topic_state(self._name(topic))

    async def look_up_topics(self, topics: Collection[str]) -> None:
        with self._errors():
            await self._inner.look_up_topics([self._name(topic) for topic in topics])

    async def create_topic(self, topic: str, partitions: int) -> TopicInfo:
        with self._errors():
            return self._info(await self._inner.create_topic(self._name(topic), partitions))

    async def create_log(
        self, topic: str, partitions: int, *, expires: bool = True, in_ids: bool = False, vital: bool = True
    ) -> TopicInfo:
        name = self._name(topic)
        return self._info(await self._inner.create_log(name, partitions, expires=expires, in_ids=in_ids, vital=vital))

    def incarnation(self, topic: str) -> int:
        return self._inner.incarnation(self._name(topic))

    async def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        ids = await self._inner.topic_ids([self._name(topic) for topic in topics])
        return {topic: ids[self._name(topic)] for topic in topics if self._name(topic) in ids}

    def misfits(self) -> Mapping[str, str]:
        return {self._names.own(topic) or topic: sentence for topic, sentence in self._inner.misfits().items()}

    def blocked(self) -> Mapping[Partition, BlockingTransaction]:
        return self._by_own_name(self._inner.blocked())

    async def topic(self, topic: str) -> TopicInfo | None:
        info = await self._inner.topic(self._name(topic))
        return None if info is None else self._info(info)

    async def topics(self) -> list[TopicInfo]:
        return [self._info(info) for info in await self._inner.topics()]

    async def trim(self, topic: str, partition: int, before_offset: int) -> None:
        await self._inner.trim(self._name(topic), partition, before_offset)

    async def trim_older_than(self, topic: str, timestamp: int) -> None:
        await self._inner.trim_older_than(self._name(topic), timestamp)

    async def reclaim(self) -> None:
        await self._inner.reclaim()

    async def checkpoint(self, into: Path) -> bool:
        return await self._inner.checkpoint(into)

    def disk_bytes(self) -> int:
        return self._inner.disk_bytes()

    def trouble(self) -> str | None:
        return self._inner.trouble()

    def troubles(self) -> Mapping[Partition, str]:
        return self._by_own_name(self._inner.troubles())

    async def clock_offset_ms(self) -> float:
        return await self._inner.clock_offset_ms()

    async def get_consumer_cursor(self, topic: str, consumer: CursorName) -> bytes | None:
        return await self._inner.get_consumer_cursor(self._name(topic), consumer)

    async def set_consumer_cursor(self, topic: str, consumer: CursorName, cursor: bytes) -> None:
        await self._inner.set_consumer_cursor(self._name(topic), consumer, cursor)

    async def begin_group(self, topic: str, group: str, offsets: Sequence[int]) -> None:
        await self._inner.begin_group(self._name(topic), self._name(group), offsets)

    async def group_position(self, topic: str, group: str, partition: int) -> GroupPosition | None:
        return await self._inner.group_position(self._name(topic), self._name(group), partition)

    async def readers(self, topic: str) -> list[str]:
        readers = await self._inner.readers(self._name(topic))
        split = (reader.partition(" ") for reader in readers)
        return [f"{kind} {self._names.own(name) or name}" for kind, _, name in split]

    async def close(self) -> None:
        await self._inner.close()


class _NamedCommitter:
    def __init__(self, inner: Committer, bus: NamedBus) -> None:
        self._inner, self._bus = inner, bus

    async def commit(self, batches: Batches) -> AppendResults:
        with self._bus._errors():
            return self._bus._by_own_name(await self._inner.commit(self._bus._batches(batches)))

    async def close(self) -> None:
        await self._inner.close()
