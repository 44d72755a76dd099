"""Records of a transaction that its coordinator does not know, as they are after it lost the markers of one."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka.client import CoordinationType
from aiokafka.errors import for_code
from aiokafka.protocol.api import Request
from aiokafka.structs import TopicPartition

from duemq.bus.base import Batches, wall_clock
from duemq.bus.kafka.aiokafka_internals import built_batch, know_topic, transaction_manager
from duemq.bus.kafka.produce.kafka_committer import KafkaCommitter
from duemq.bus.kafka.produce.v1.producer import ProducerV1
from duemq.bus.kafka.produce.v2.producer import ProducerV2
from duemq.bus.kafka.requests.describe_requests import DescribeTransactionsRequest
from duemq.bus.kafka.requests.transaction_requests import ProduceRequest_v12
from tests.support.patience import SERVERS_S


class ProduceRequest_v11(ProduceRequest_v12):
    API_VERSION = 11  # the last one that adds no partitions to a transaction


class OldProduceRequest(Request[ProduceRequest_v11]):  # type: ignore[misc]
    API_KEY = 0

    def __init__(self, transactional_id: str, topic: str, partition: int, records: bytes) -> None:
        self._fields: Any = transactional_id, -1, 30_000, [(topic, [(partition, records, {})], {})], {}

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(*self._fields)


async def write_unknown(committer: KafkaCommitter, batches: Batches) -> None:
    """Write these as the committer's producer. The broker's `transaction.partition.verification.enable` is false."""
    producer = committer.producer
    await _markers_are_written(committer)
    for where, parts in (await committer.prepare(batches, wall_clock())).items():
        assert isinstance(producer, ProducerV1 | ProducerV2)
        if isinstance(producer, ProducerV2):
            transactional_id, state = producer.transactional_id, (*producer.epoch, 0)
        else:
            manager = transaction_manager(producer.kafka)
            sequence = manager.sequence_number(TopicPartition(*where))
            transactional_id, state = manager.transactional_id, (manager.producer_id, manager.producer_epoch, sequence)
        (part,) = parts
        await know_topic(producer.client, where[0])
        leader = producer.client.cluster.leader_for_partition(TopicPartition(*where))
        request = OldProduceRequest(transactional_id, *where, built_batch(part.builder, *state))
        (((_, ((_, code, *_),), _),)) = (await producer.client.send(leader, request)).topics
        if code:
            raise for_code(code)(where)


async def _markers_are_written(committer: KafkaCommitter) -> None:
    """Of the transaction before: a broker refuses those that come after records of the same epoch."""
    hanging = committer.hanging
    async with asyncio.timeout(SERVERS_S):
        while True:
            name = hanging.transactional_id
            request = DescribeTransactionsRequest([name])
            answer = await hanging.wire.ask_coordinator(CoordinationType.TRANSACTION, name, request)
            if not answer.transactions[0][2].startswith("Prepare"):
                return
            await asyncio.sleep(0.01)
