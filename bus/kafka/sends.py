"""The batches of one transaction, sent side by side."""

from __future__ import annotations

import asyncio
from typing import Any

from duemq.bus.base import Partition, TargetRefused
from duemq.bus.kafka.batches import Batch
from duemq.bus.kafka.catalog import Catalog
from duemq.bus.kafka.failures import worst
from duemq.bus.kafka.stop import noticed
from duemq.model.errors import LogFailed

_LOOK_S = 1.0  # sends that take so long may wait for a topic that is gone, which aiokafka would do for ever

Made = dict[Partition, list[Batch]]
Sent = dict[Partition, list[asyncio.Future[Any]]]


async def send_all(
    producer: Any, catalog: Catalog, name: str, made: Made
) -> dict[Partition, list[tuple[int, int, int]]]:
    """Where every batch landed: its first position, its offset, and the broker's time or -1.

    Raises Fenced, TargetRefused or LogFailed; of several failures the one that says most. `name`: of the committer.
    """
    # The first batches of all partitions go in one request: nothing here waits for the network yet.
    sent = {where: [await _hand_over(producer, where, parts[0])] for where, parts in made.items()}
    rest = [
        asyncio.create_task(_send_rest(producer, where, parts, sent[where]), name="kafka commit part")
        for where, parts in made.items()
        if len(parts) > 1
    ]
    try:
        await _all_done(sent, catalog)
        for task in rest:
            await task
        if rest:
            await _all_done(sent, catalog)
    finally:
        for task in rest:
            task.cancel()
    landed: dict[Partition, list[tuple[int, int, int]]] = {}
    failures: list[tuple[str, BaseException]] = []
    for where, futures in sent.items():
        landed[where] = []
        for part, future in zip(made[where], futures, strict=True):
            error = future.exception()
            if error is not None:
                failures.append((where[0], error))
            elif future.result().offset < 0:
                failures.append((where[0], LogFailed("Kafka no longer says where a batch landed")))
            else:
                landed[where].append((part.start, future.result().offset, future.result().timestamp))
    if failures:
        raise worst(name, failures, catalog.forget)
    return landed


async def _hand_over(producer: Any, where: Partition, part: Batch) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = await producer.send_batch(part.builder, where[0], partition=where[1])
    future.add_done_callback(noticed)
    return future


async def _send_rest(producer: Any, where: Partition, parts: list[Batch], sent: list[asyncio.Future[Any]]) -> None:
    for part in parts[1:]:
        sent.append(await _hand_over(producer, where, part))


async def _all_done(sent: Sent, catalog: Catalog) -> None:
    """Wait for the acknowledgements; the fate of each is looked at later. Raises TargetRefused for a topic gone."""
    waiting = {future for futures in sent.values() for future in futures}
    while True:
        _, waiting = await asyncio.wait(waiting, timeout=_LOOK_S, return_when=asyncio.ALL_COMPLETED)
        if not waiting:
            return
        topics = {topic for topic, _ in sent}
        there = set(await catalog.look(topics))
        for topic in topics - there:
            raise TargetRefused(topic, "unknown_topic", f"topic {topic!r} does not exist any more")
