"""A Kafka for one member of a group, without a Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from duemq.client.consumer.kafka.rebalance import Rebalance
from duemq.client.consumer.kafka.source import KafkaMessageSource
from duemq.client.consumer.options import ConsumerOptions
from tests.support.servers.aiokafka_parts import topics_of

T0, T1, RETRY = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("retry.g", 0)


def changes(lost: list[TopicPartition]) -> Rebalance:
    async def gained(_: Collection[TopicPartition]) -> None: ...

    async def lose(partitions: Collection[TopicPartition]) -> None:
        lost.extend(partitions)

    return Rebalance(gained, lose)


class Group:
    """An aiokafka consumer and its coordinator: topic `t` with offsets 10 to 20, and what the group has committed."""

    def __init__(self, numbers: Iterable[int] = (0, 1)) -> None:
        self._coordinator = self._client = self
        self.id = 7
        self._commit_lock = asyncio.Lock()
        self.commits: dict[TopicPartition, OffsetAndMetadata] = {}
        self.numbers, self.places, self.paused = set(numbers), dict[TopicPartition, int](), set[TopicPartition]()
        self.fails: list[Exception] = []
        self.requests = 0
        self.on_ask: Callable[[], object] = lambda: None

    def _answer(self) -> None:
        self.on_ask()
        if self.fails:
            raise self.fails.pop(0)

    def get_random_node(self) -> int:
        return 1

    async def send(self, node: int, request: Any) -> Any:
        return SimpleNamespace(topics=[(0, topic, self.id, 0, False, [], 0) for _, _, topic, _ in topics_of(request)])

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return self.numbers or None

    def assignment(self) -> set[TopicPartition]:
        return {T0, T1, RETRY}

    async def ensure_coordinator_known(self) -> None: ...

    async def fetch_committed_offsets(self, asked: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        self._answer()
        return {each: self.commits[each] for each in asked if each in self.commits}

    async def _do_commit_offsets(self, _: None, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self._answer()
        self.requests += 1
        self.commits |= offsets

    async def beginning_offsets(self, asked: list[TopicPartition]) -> dict[TopicPartition, int]:
        self._answer()
        return dict.fromkeys(asked, 10)

    async def end_offsets(self, asked: list[TopicPartition]) -> dict[TopicPartition, int]:
        self._answer()
        return dict.fromkeys(asked, 20)

    async def offsets_for_times(self, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        return {each: SimpleNamespace(offset=15) if each == T0 else None for each in asked}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.places[partition] = offset

    async def position(self, partition: TopicPartition) -> int:
        return self.places[partition]

    def pause(self, partition: TopicPartition) -> None:
        self.paused.add(partition)

    def resume(self, partition: TopicPartition) -> None:
        self.paused.discard(partition)


def with_source(kafka: Group, use: Callable[[KafkaMessageSource], Awaitable[None]]) -> None:
    async def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("duemq.client.consumer.kafka.source.new_consumer", lambda **settings: kafka)
            patch.setattr("duemq.client.consumer.kafka.source.start_without_topics", lambda kafka: None)
            source = KafkaMessageSource("g", "127.0.0.1:1", ConsumerOptions(), ["t"], ["retry.g"], changes([]))
        await use(source)

    asyncio.run(run())
