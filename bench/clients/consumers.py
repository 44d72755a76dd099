"""Ways to consume a topic, each with a handler that does nothing. They show how many messages per second one process
can consume."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer

from duemq.bench.base.workers import WorkerLink
from duemq.client.consumer import Consumer, ConsumerOptions, Message

_AT_ONCE = 1_000
_SHOWN_EVERY = 10_000


@dataclass(frozen=True, slots=True)
class ConsumeCost:
    """The cost of one way to consume, from the first message to the last: seconds, and CPU seconds of the process."""

    count: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.count / self.seconds


class _Counter:
    """The handler that all ways use."""

    def __init__(self, link: WorkerLink, count: int) -> None:
        self._link, self._count, self._handled_count = link, count, 0
        self._began = self._ended = (0.0, 0.0)
        self.done = asyncio.Event()

    async def handle(self, message: object) -> None:
        if not self._handled_count:
            self._began = time.perf_counter(), time.process_time()
        self._handled_count += 1
        if self._handled_count % _SHOWN_EVERY == 0:
            self._link.progress(self._handled_count)
        if self._handled_count == self._count:
            self._ended = time.perf_counter(), time.process_time()
            self.done.set()

    def result(self) -> ConsumeCost:
        return ConsumeCost(self._count, self._ended[0] - self._began[0], self._ended[1] - self._began[1])


def _plain(bootstrap: str, topic: str, group: str) -> Any:
    return AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest",
        isolation_level="read_committed",
    )  # fmt: skip


async def by_getmany(link: WorkerLink, bootstrap: str, topic: str, group: str, count: int) -> ConsumeCost:
    """Consume with aiokafka alone in the fastest way: a loop over `getmany`, with commits in the background."""
    counter, consumer = _Counter(link, count), _plain(bootstrap, topic, group)
    await consumer.start()
    try:
        while not counter.done.is_set():
            for records in (await consumer.getmany(timeout_ms=500, max_records=_AT_ONCE)).values():
                for record in records:
                    await counter.handle(record)
    finally:
        await consumer.stop()
    return counter.result()


async def by_iterator(link: WorkerLink, bootstrap: str, topic: str, group: str, count: int) -> ConsumeCost:
    """Consume with aiokafka alone as most programs use it: `async for record in consumer`."""
    counter, consumer = _Counter(link, count), _plain(bootstrap, topic, group)
    await consumer.start()
    try:
        async for record in consumer:
            await counter.handle(record)
            if counter.done.is_set():
                break
    finally:
        await consumer.stop()
    return counter.result()


async def by_consumer(
    link: WorkerLink, bootstrap: str, topic: str, group: str, count: int, per_key: int | None
) -> ConsumeCost:
    """Consume with duemq's consumer."""
    counter = _Counter(link, count)
    consumer = Consumer(group, bootstrap, ConsumerOptions(start="first", per_key=per_key))

    @consumer.on(topic)
    async def handle(message: Message) -> None:
        await counter.handle(message)

    async with consumer:
        await counter.done.wait()
    return counter.result()
