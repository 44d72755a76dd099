"""The consuming side on Kafka: a plain read-committed consumer that timestamps records when it receives them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from duemq.bench.base.session import now_ms
from duemq.bench.base.workers import WorkerLink
from duemq.bench.clients.payloads import SEQUENCE
from duemq.bench.clients.reader import ReceivedRecords

_AT_ONCE = 1000  # records per timestamp, because a consumer returns records only once all of them are decoded
_LOOK_S = 0.2  # how soon a stop is noticed
_FETCH_BYTES = 4 << 20


@dataclass(slots=True)
class RecordArrays:
    """The columns of the records that were read."""

    keep_ids: bool
    seq: list[bytes] = field(default_factory=list)
    due: list[bytes] = field(default_factory=list)
    ids: list[bytes] = field(default_factory=list)
    # Per group of records: arrival time, partition, count.
    groups: list[tuple[float, int, int]] = field(default_factory=list)

    def add(self, partition: int, records: Sequence[Any]) -> None:
        self.groups.append((now_ms(), partition, len(records)))
        headers = [dict(record.headers) for record in records]
        self.seq.extend([record.value[SEQUENCE] for record in records])
        self.due.extend([each["duemq-due"] for each in headers])
        if self.keep_ids:
            self.ids.extend([each["duemq-id"] for each in headers])

    def received(self, breaks: int) -> ReceivedRecords:
        at, partition, size = np.array(self.groups, np.float64).reshape(-1, 3).T
        return ReceivedRecords(
            seq=np.array([int(each) for each in self.seq], np.int64),
            due=np.array([int(each) for each in self.due], np.int64),
            at=np.repeat(at, size.astype(np.int64)),
            partition=np.repeat(partition, size.astype(np.int64)).astype(np.int64),
            ids=[each.decode() for each in self.ids],
            answers=len(self.groups),
            breaks=breaks,
        )


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """Reads committed records from Kafka, from all partitions of a topic at once, and without a consumer group."""

    bootstrap: str
    partitions: int

    async def read(self, link: WorkerLink, topic: str, keep_ids: bool = False) -> ReceivedRecords:
        """Read `topic` from its start until the request to stop, then up to its last stable offset."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=_FETCH_BYTES,
        )
        await consumer.start()
        try:
            places = [TopicPartition(topic, number) for number in range(self.partitions)]
            consumer.assign(places)
            books, breaks = RecordArrays(keep_ids), 0
            while not link.stopped.is_set():
                breaks += not await _take(consumer, books, link)
            ends = await consumer.end_offsets(places)
            while [place for place in places if await consumer.position(place) < ends[place]]:
                breaks += not await _take(consumer, books, link)
            return books.received(breaks)
        finally:
            await consumer.stop()


async def _take(consumer: Any, books: RecordArrays, link: WorkerLink) -> bool:
    try:
        batches = await consumer.getmany(timeout_ms=int(_LOOK_S * 1000), max_records=_AT_ONCE)
    except KafkaError:
        return False
    for place, records in batches.items():
        books.add(place.partition, records)
    if batches:
        link.progress(len(books.seq))
    return True
