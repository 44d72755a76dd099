"""The batches of one transaction, sent concurrently by an aiokafka producer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from duemq.bus.kafka.aiokafka_internals import transaction_manager
from duemq.bus.kafka.produce.failures import worst
from duemq.bus.kafka.produce.stop import notice_error
from duemq.bus.kafka.produce.transaction_sends import BatchesByPartition, Positions, until_acknowledged
from duemq.bus.kafka.record_batches import RecordBatch
from duemq.bus.kafka.topics.catalog import Catalog
from duemq.model.errors import LogFailed
from duemq.model.messages.record import Partition

SendsByPartition = dict[Partition, list[asyncio.Future[Any]]]


async def send_all(
    producer: Any, catalog: Catalog, name: str, batches: BatchesByPartition, own: Collection[str], patience_s: float
) -> Positions:
    """Send all batches, and wait until they are acknowledged. Raises Fenced, WriteRefused or LogFailed; of several
    failures, the probable cause.

    `name`: the committer's name; the other arguments are those of `until_acknowledged`.
    """
    # Nothing in this loop waits for the network, so the first batches of all partitions are sent in one request.
    sends = {where: [await _hand_over(producer, where, parts[0])] for where, parts in batches.items()}
    rest = [
        asyncio.create_task(_send_rest(producer, where, parts, sends[where]), name="kafka commit part")
        for where, parts in batches.items()
        if len(parts) > 1
    ]
    try:
        await until_acknowledged(_Sends(producer, sends), catalog, own, patience_s)
        for task in rest:
            await task
        if rest:
            await until_acknowledged(_Sends(producer, sends), catalog, own, patience_s)
    finally:
        for task in rest:
            task.cancel()
    positions: Positions = {}
    failures: list[tuple[str, BaseException]] = []
    for where, futures in sends.items():
        positions[where] = []
        for part, future in zip(batches[where], futures, strict=True):
            error = future.exception()
            if error is not None:
                failures.append((where[0], error))
            elif future.result().offset < 0:
                failures.append((where[0], LogFailed("Kafka no longer knows the offset of a batch")))
            else:
                positions[where].append((part.start, future.result().offset, future.result().timestamp))
    if failures:
        raise worst(name, failures, own, catalog.forget)
    return positions


async def _hand_over(producer: Any, where: Partition, part: RecordBatch) -> asyncio.Future[Any]:
    future: asyncio.Future[Any]
    try:
        future = await producer.send_batch(part.builder, where[0], partition=where[1])
    except KafkaError as error:  # such as a topic unknown to the producer: the topic fails, not the commit
        future = asyncio.get_running_loop().create_future()
        future.set_exception(error)
    future.add_done_callback(notice_error)
    return future


async def _send_rest(
    producer: Any, where: Partition, parts: list[RecordBatch], futures: list[asyncio.Future[Any]]
) -> None:
    for part in parts[1:]:
        futures.append(await _hand_over(producer, where, part))


class _Sends:
    def __init__(self, producer: Any, sends: SendsByPartition) -> None:
        self._leader_of = producer.client.cluster.leader_for_partition
        self._missing = transaction_manager(producer).partitions_to_add
        self._sends = sends
        self._waiting = {future for futures in sends.values() for future in futures}

    async def wait(self, timeout_s: float) -> bool:
        _, self._waiting = await asyncio.wait(self._waiting, timeout=timeout_s, return_when=asyncio.ALL_COMPLETED)
        return not self._waiting

    def silent(self) -> list[Partition]:
        return [where for where, futures in self._sends.items() if not self._waiting.isdisjoint(futures)]

    def has_leaders(self, partitions: Collection[Partition]) -> bool:
        return all(self._leader_of(TopicPartition(*where)) not in (None, -1) for where in partitions)

    def is_in_doubt(self) -> bool:
        return bool(self._missing())
