"""The transaction protocol before Kafka 4, implemented by aiokafka: partitions are added before records are sent.

A request that reaches a broker late, after its caller gave up, may count as part of a later transaction.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from aiokafka.producer import sender
from aiokafka.structs import TopicPartition

from duemq.bus.kafka.aiokafka_internals import (
    is_sending,
    on_coordinator_lost,
    transaction_coordinator,
    transaction_manager,
)
from duemq.bus.kafka.clients import new_producer
from duemq.bus.kafka.produce.producer import ProducerSetup
from duemq.bus.kafka.produce.stop import notice_transaction, stop
from duemq.bus.kafka.produce.transaction_sends import BatchesByPartition, Positions
from duemq.bus.kafka.produce.v1.sends import send_all
from duemq.model.messages.record import Partition

# After a commit the broker is still writing markers, and refuses the next transaction for about a millisecond. With
# aiokafka's pause of 20 ms before a retry, a cycle would take 25 ms instead of 2.
sender.BACKOFF_OVERRIDE = 0.002


class ProducerV1:
    """A `Producer` for all brokers."""

    def __init__(self, setup: ProducerSetup) -> None:
        self._setup = setup
        self.kafka: Any = new_producer(
            transactional_id=setup.transactional_id,
            transaction_timeout_ms=setup.options.transaction_timeout_ms,
            acks="all",
            **setup.options.client(),
        )
        self.client: Any = self.kafka.client
        setup.wire.watch(self.client)
        on_coordinator_lost(self.kafka, setup.on_coordinator_lost)

    @property
    def producer_id(self) -> int:
        producer_id: int = transaction_manager(self.kafka).producer_id
        return producer_id

    async def connect(self) -> None: ...

    async def start(self) -> None:
        await self.kafka.start()

    async def begin(self) -> None:
        await self.kafka.begin_transaction()

    async def send(self, batches: BatchesByPartition, patience_s: float) -> Positions:
        own = self._setup
        return await send_all(self.kafka, own.catalog, own.name, batches, own.own, patience_s)

    async def commit(self) -> None:
        await self.kafka.commit_transaction()

    async def abort(self) -> None:
        """Abort, but do nothing while batches are unacknowledged: aiokafka waits for them before it aborts, and a batch
        for a deleted topic is never acknowledged."""
        notice_transaction(self.kafka)
        if not is_sending(self.kafka):
            await self.kafka.abort_transaction()

    async def end_open(self, partitions: Collection[Partition], *, commits: bool) -> None:
        await self.kafka.begin_transaction()
        for where in partitions:
            transaction_manager(self.kafka).maybe_add_partition_to_txn(TopicPartition(*where))
        await (self.kafka.commit_transaction() if commits else self.kafka.abort_transaction())

    def coordinator(self) -> object | None:
        return transaction_coordinator(self.kafka)

    async def stop(self, *, failed: bool) -> None:
        await stop(self.kafka, failed=failed)
