"""The ceiling for comparisons: plain Kafka clients on the same brokers, with the same messages, without duemq.

There are two ceilings. For throughput and CPU: a pass-through, which consumes messages and produces them again. For
lateness: a producer that keeps messages in memory and sends each one when it is due.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from duemq.bench.base.session import now_ms
from duemq.bench.base.workers import WorkerLink
from duemq.bench.clients.payloads import Payloads

Headers = list[tuple[str, bytes]]

_AT_ONCE = 5000
_BATCH_BYTES, _FETCH_BYTES = 1 << 20, 4 << 20
_LEAD_S = 0.5


@dataclass(frozen=True, slots=True)
class PassThrough:
    """The cost of passing `count` messages through: seconds, and CPU seconds of the process."""

    count: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.count / self.seconds


def _producer(bootstrap: str) -> Any:
    return AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        max_batch_size=_BATCH_BYTES,
        max_request_size=8 * _BATCH_BYTES,
    )


def _headers(due_ms: int) -> Headers:
    """Headers with the same number of bytes as duemq's own."""
    return [("duemq-id", b"0" * 32), ("duemq-due", b"%d" % due_ms), ("duemq-attempt", b"1")]


async def _send_all(producer: Any, topic: str, messages: Iterator[tuple[bytes, Headers]]) -> None:
    sent, batch = [], producer.create_batch()
    for value, headers in messages:
        if batch.append(key=None, value=value, timestamp=None, headers=headers) is None:
            sent.append(await producer.send_batch(batch, topic, partition=0))
            batch = producer.create_batch()
            batch.append(key=None, value=value, timestamp=None, headers=headers)
    if batch.record_count():
        sent.append(await producer.send_batch(batch, topic, partition=0))
    await asyncio.gather(*sent)


async def fill_topic(link: WorkerLink, bootstrap: str, topic: str, count: int, payload_bytes: int, seed: int) -> None:
    """Write `count` messages to the first partition of `topic`."""
    payloads, headers = Payloads(payload_bytes, seed), _headers(int(now_ms()))
    producer = _producer(bootstrap)
    await producer.start()
    try:
        for first in range(0, count, _AT_ONCE):
            texts = payloads.make(first, min(_AT_ONCE, count - first))
            await _send_all(producer, topic, ((text.encode(), headers) for text in texts))
            link.progress(first + len(texts))
    finally:
        await producer.stop()


async def pass_through(link: WorkerLink, bootstrap: str, source: str, topic_state: str, count: int) -> PassThrough:
    """Consume `count` messages from the first partition of `source`, and produce them to the first partition of
    `topic_state`."""
    producer, place = _producer(bootstrap), TopicPartition(source, 0)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=_FETCH_BYTES,
    )
    await producer.start()
    await consumer.start()
    try:
        consumer.assign([place])
        began, cpu_before, done = time.monotonic(), time.process_time(), 0
        while done < count:
            records = (await consumer.getmany(timeout_ms=1000, max_records=_AT_ONCE)).get(place, ())
            await _send_all(producer, topic_state, ((record.value, list(record.headers)) for record in records))
            done += len(records)
            link.progress(done)
        return PassThrough(done, time.monotonic() - began, time.process_time() - cpu_before)
    finally:
        await consumer.stop()
        await producer.stop()


async def send_on_time(
    link: WorkerLink, bootstrap: str, topic: str, rate: float, seconds: float, payload_bytes: int, seed: int
) -> int:
    """Send `rate` messages per second, each at its due time, which is random. Returns the number of messages."""
    count = int(rate * seconds)
    payloads = iter(Payloads(payload_bytes, seed).make(0, count))
    producer = _producer(bootstrap)
    await producer.start()
    try:
        begin = now_ms() + _LEAD_S * 1000
        dues = np.sort(np.random.default_rng(seed).integers(0, int(seconds * 1000), count)) + int(begin)
        first = 0
        while first < count:
            until = int(np.searchsorted(dues, now_ms(), "right"))
            now_due = dues[first:until].tolist()
            for due, text in zip(now_due, islice(payloads, len(now_due)), strict=True):
                await producer.send(topic, text.encode(), partition=0, headers=_headers(due))
            first += len(now_due)
            link.progress(first)
            await asyncio.sleep(0.001 if first < count else 0)
        await producer.flush()
        return count
    finally:
        await producer.stop()
