"""The batches of one transaction, sent side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Any

from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from duemq.bus.base import DestinationRefused
from duemq.bus.kafka.aiokafka_internals import transaction_manager
from duemq.bus.kafka.produce.batches import RecordBatch
from duemq.bus.kafka.produce.failures import worst
from duemq.bus.kafka.produce.stop import notice_error
from duemq.bus.kafka.topics.catalog import Catalog
from duemq.model.errors import LogFailed
from duemq.model.record import Partition

_LOOK_S = 0.25  # sends that take so long may wait for a topic that is gone, or that has no leader
_GLANCE_S = 0.05  # how often the producer's own knowledge is looked at, which is free

BatchesByPartition = dict[Partition, list[RecordBatch]]
SendsByPartition = dict[Partition, list[asyncio.Future[Any]]]


async def send_all(
    producer: Any, catalog: Catalog, name: str, batches: BatchesByPartition, own: Collection[str], patience_s: float
) -> dict[Partition, list[tuple[int, int, int]]]:
    """Where every batch landed: its first position, its offset, and the broker's time or -1.

    Raises Fenced, DestinationRefused or LogFailed; of several failures the one that says most. `name`: of the
    committer; `own`: duemq's own topics. A destination that is silent for `patience_s` while they have answered is
    refused.
    """
    # The first batches of all partitions go in one request: nothing here waits for the network yet.
    sends = {where: [await _hand_over(producer, where, parts[0])] for where, parts in batches.items()}
    rest = [
        asyncio.create_task(_send_rest(producer, where, parts, sends[where]), name="kafka commit part")
        for where, parts in batches.items()
        if len(parts) > 1
    ]
    try:
        await _all_done(producer, sends, catalog, own, patience_s)
        for task in rest:
            await task
        if rest:
            await _all_done(producer, sends, catalog, own, patience_s)
    finally:
        for task in rest:
            task.cancel()
    positions: dict[Partition, list[tuple[int, int, int]]] = {}
    failures: list[tuple[str, BaseException]] = []
    for where, futures in sends.items():
        positions[where] = []
        for part, future in zip(batches[where], futures, strict=True):
            error = future.exception()
            if error is not None:
                failures.append((where[0], error))
            elif future.result().offset < 0:
                failures.append((where[0], LogFailed("Kafka no longer says where a batch landed")))
            else:
                positions[where].append((part.start, future.result().offset, future.result().timestamp))
    if failures:
        raise worst(name, failures, own, catalog.forget)
    return positions


async def _hand_over(producer: Any, where: Partition, part: RecordBatch) -> asyncio.Future[Any]:
    future: asyncio.Future[Any]
    try:
        future = await producer.send_batch(part.builder, where[0], partition=where[1])
    except KafkaError as error:  # such as a topic that the producer has not heard of: that topic's, not the commit's
        future = asyncio.get_running_loop().create_future()
        future.set_exception(error)
    future.add_done_callback(notice_error)
    return future


async def _send_rest(
    producer: Any, where: Partition, parts: list[RecordBatch], futures: list[asyncio.Future[Any]]
) -> None:
    for part in parts[1:]:
        futures.append(await _hand_over(producer, where, part))


async def _all_done(
    producer: Any, sends: SendsByPartition, catalog: Catalog, own: Collection[str], patience_s: float
) -> None:
    """Wait for the acknowledgements; the outcome of each is looked at later.

    aiokafka tries for ever. Raises DestinationRefused for a destination that cannot take its records, as the brokers
    say by now. They are asked every `_LOOK_S`, and sooner when the producer is in doubt: it knows no leader any more,
    which is so as soon as a broker refused a batch, or the transaction does not get its partitions.
    """
    leader_of, missing = producer.client.cluster.leader_for_partition, transaction_manager(producer).partitions_to_add
    waiting = {future for futures in sends.values() for future in futures}
    now = time.monotonic()
    until, look, looks = now + patience_s, now + _LOOK_S, 0
    while True:
        _, waiting = await asyncio.wait(waiting, timeout=_GLANCE_S, return_when=asyncio.ALL_COMPLETED)
        if not waiting:
            return
        silent = [where for where, futures in sends.items() if not waiting.isdisjoint(futures)]
        now = time.monotonic()
        has_leaders = all(leader_of(TopicPartition(*where)) not in (None, -1) for where in silent)
        if now < look and has_leaders and (looks or not missing()):
            continue
        look, looks = now + _LOOK_S, looks + 1
        live_topics = set(await catalog.look({topic for topic, _ in silent}))
        for topic, partition in silent:
            if topic in own:
                continue
            metadata = catalog.last(topic)
            if topic not in live_topics or metadata is None:
                raise DestinationRefused(topic, "unknown_topic", f"topic {topic!r} does not exist any more")
            if partition in metadata.trouble:
                raise DestinationRefused(topic, metadata.trouble[partition], metadata.destination.trouble_text)
        if now > until and all(topic not in own for topic, _ in silent):
            topic, partition = silent[0]
            raise DestinationRefused(topic, "no_answer", f"partition {partition} of topic {topic!r} does not answer")
