"""The log of a consumer on Kafka: a source that is a group member, and a producer for messages that are sent back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from duemq.bus.kafka.clients import new_consumer
from duemq.client.consumer.base import Mismatch, PartitionsMoved
from duemq.client.consumer.kafka.assignors import assignor
from duemq.client.consumer.kafka.rebalance import Rebalance
from duemq.client.consumer.kafka.retry_publisher import RetryPublisher
from duemq.client.consumer.kafka.source import KafkaMessageSource
from duemq.client.consumer.kafka.topics import prepare
from duemq.client.consumer.message import Message
from duemq.client.consumer.options import ConsumerOptions
from duemq.client.consumer.retry.policy import DeadLetter, Wait

_JOIN_S: Final = 60.0


class KafkaLog:
    """`bootstrap`: addresses of Kafka brokers. `own_name`: the group's name inside duemq, if it differs
    (`model/topics/topic_names.py`)."""

    def __init__(self, group: str, bootstrap: str, options: ConsumerOptions, own_name: str | None = None) -> None:
        self._group, self._bootstrap, self._options = group, bootstrap, options
        self._publisher = RetryPublisher(group, bootstrap, options, own_name)

    async def open(
        self,
        topics: Mapping[str, str],
        retry: Sequence[str],
        gained: PartitionsMoved,
        lost: PartitionsMoved,
        report_mismatches: Callable[[Sequence[Mismatch]], None],
    ) -> KafkaMessageSource:
        """See `ConsumerLog`. Raises Rejected if duemq does not run on this Kafka, and aiokafka's errors."""
        options, names = self._options, sorted(topics)
        sharing = assignor(options.allocation, options.rack, topics, report_mismatches)
        await self._publisher.start(await prepare(self._group, self._bootstrap, options, names))
        changes = Rebalance(gained, lost)
        return KafkaMessageSource(self._group, self._bootstrap, options, [*names, *retry], retry, changes, sharing)

    async def send_back(self, message: Message, to: Wait | DeadLetter, error: str) -> Wait | DeadLetter:
        return await self._publisher.send(message, to, error)

    async def renew(self, topics: Sequence[str]) -> None:
        """See `ConsumerLog`. Brokers drop a group's offsets after `offsets.retention.minutes` without a member, so this
        method lets a member join and leave."""
        joined = asyncio.Event()

        async def gained(_: object) -> None:
            joined.set()

        async def lost(_: object) -> None: ...

        options = self._options
        kafka = new_consumer(
            bootstrap_servers=self._bootstrap, group_id=self._group, enable_auto_commit=False,
            partition_assignment_strategy=(RoundRobinPartitionAssignor,), **options.kafka_of(AIOKafkaConsumer),
        )  # fmt: skip
        kafka.subscribe(list(topics), listener=Rebalance(gained, lost))
        try:
            async with asyncio.timeout(_JOIN_S):
                await kafka.start()
                await joined.wait()
        finally:
            await kafka.stop()

    async def close(self) -> None:
        await self._publisher.stop()
