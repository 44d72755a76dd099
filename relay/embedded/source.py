"""Reads topics in a server's own log for a destination. The destination's position is a cursor that no client can move
(`model/messages/names.py`).

One process reads all partitions, so no partition ever moves to another process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from duemq.background.loop import Loop
from duemq.background.outage import Outage
from duemq.bus.base import Bus, TopicInfo
from duemq.client.consumer.base import FetchPosition, Partition, PartitionsMoved
from duemq.client.consumer.done_ranges import Ranges
from duemq.model.errors import Rejected, Unavailable
from duemq.model.messages.names import group_cursor
from duemq.model.messages.record import Headers, StoredRecord, unpack_record
from duemq.relay.embedded.places import decode_places, encode_places

log = logging.getLogger(__name__)

_LOOK_S = 5.0  # between checks of an idle topic
_READ_BYTES = 1 << 20


@dataclass(slots=True)
class LogRecord:
    """See `message.KafkaRecord`."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class EmbeddedSource:
    """See `MessageSource`. `bus`: returns the bus, or raises Unavailable while there is none: a node reopens it after a
    failure.

    Without a stored cursor, reading starts at the oldest record. If a destination must start elsewhere, its declaration
    stores a cursor.
    """

    def __init__(
        self, bus: Callable[[], Bus], group: str, topics: Sequence[str], gained: PartitionsMoved, lost: PartitionsMoved,
        log_id: str = "",
    ) -> None:  # fmt: skip
        self._bus, self._group, self._topics, self._log_id = bus, group, topics, log_id
        self._cursor = group_cursor(group)
        self._gained, self._lost = gained, lost
        self._next: dict[Partition, int] = {}  # the next offset to read
        self._stored: dict[Partition, FetchPosition] = {}
        self._grown = asyncio.Event()
        self._dirty: dict[str, None] = {}  # topics that may have more records; the one read last is at the end
        self._held_partitions: frozenset[Partition] = frozenset()
        self._watching: list[asyncio.Task[None]] = []
        self._pulls, self._commits = Outage("pull", group), Outage("commit", group)

    async def start(self) -> None:
        for topic in self._topics:
            # Failures are logged at a low level, because `pull` fails as well and reports them.
            loop = Loop("topic", partial(self._watch, topic), topic, level=logging.DEBUG)
            self._watching.append(asyncio.create_task(loop.run(), name=f"watch {topic}"))

    async def pull(self, timeout_ms: int, most: int) -> dict[Partition, list[Any]]:
        if not self._dirty:
            self._grown.clear()
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._grown.wait()
            except TimeoutError:
                return {}
        pulled: dict[Partition, list[Any]] = {}
        try:
            for topic in list(self._dirty):
                del self._dirty[topic]
                if count := await self._pull_topic(topic, most, pulled):
                    self._dirty[topic] = None
                most -= count
                if most <= 0:
                    break
        except Unavailable as error:
            self._mark_all()
            await asyncio.sleep(self._pulls.record_failure(error))
        else:
            self._pulls.record_success()
        return pulled

    async def _pull_topic(self, topic: str, most: int, pulled: dict[Partition, list[Any]]) -> int:
        """Read a topic's partitions. Returns the number of records; if it is not 0, more records may follow."""
        bus = self._bus()
        info = await bus.topic(topic)
        if info is None:
            return 0
        if Partition(topic, info.partitions - 1) not in self._next:
            await self._begin(bus, info)
        count = 0
        share = max(most // max(info.partitions, 1), 1)
        for number in range(info.partitions):
            partition = Partition(topic, number)
            if partition in self._held_partitions:  # a later call of `hold` marks the topic again
                continue
            records = await bus.read(topic, number, self._next[partition], share, _READ_BYTES)
            if records:
                self._next[partition] = records[-1].offset + 1
                pulled[partition] = [_log_record(topic, number, record) for record in records]
                count += len(records)
        return count

    async def _begin(self, bus: Bus, info: TopicInfo) -> None:
        """Find the first offset to read in each partition."""
        topic = info.name
        cursor = await bus.get_consumer_cursor(topic, self._cursor)
        places = [FetchPosition(offset, offset) for offset in info.start_offsets]
        if cursor is not None:
            try:
                places = decode_places(cursor, info)
            except Rejected as error:
                log.warning("%s starts over with %s: %s", self._group, topic, error, extra={"action": "begin"})
        new = {
            partition: place
            for number, place in enumerate(places)
            if (partition := Partition(topic, number)) not in self._next
        }
        self._stored |= new
        self._next |= {partition: place.commit for partition, place in new.items()}
        await self._gained(new)

    async def _watch(self, topic: str) -> float:
        """Mark the topic now, then wait until it grows or an interval has passed."""
        with closing(self._bus().subscribe(topic)) as subscription:
            self._mark(topic)
            await subscription.wait(_LOOK_S)
        return 0.0

    def _mark(self, topic: str) -> None:
        self._dirty[topic] = None
        self._grown.set()

    def _mark_all(self) -> None:
        for topic in self._topics:
            self._mark(topic)

    def hold(self, partitions: Collection[Partition]) -> None:
        self._held_partitions = frozenset(partitions)
        self._mark_all()

    def rewind(self, partition: Partition, offset: int) -> bool:
        self._next[partition] = offset
        self._mark(partition.topic)
        return True

    async def idle(self) -> None:
        """Does nothing: the embedded log needs no heartbeat."""

    def partitions(self) -> frozenset[Partition]:
        return frozenset(self._next)

    async def position(self, partition: Partition) -> int | None:
        return self._next.get(partition)

    def done(self, partition: Partition) -> Ranges:
        return self._stored[partition].done

    def end(self, partition: Partition) -> int | None:
        try:
            return self._bus().reach(partition.topic, partition.partition)
        except Unavailable:
            return None

    def log_id(self, topic: str) -> str:
        return self._log_id

    async def save(self, places: Mapping[Partition, FetchPosition]) -> Collection[Partition]:
        stored = {**self._stored, **places}
        try:
            bus = self._bus()
            cursors = {
                topic: encode_places(topic, [stored[each] for each in sorted(stored) if each.topic == topic])
                for topic in {partition.topic for partition in places}
            }
            stores = (bus.set_consumer_cursor(topic, self._cursor, cursor) for topic, cursor in cursors.items())
            await asyncio.gather(*stores)  # concurrently, so that they share one sync
        except Unavailable as error:
            self._commits.record_failure(error)
            return ()
        self._commits.record_success()
        self._stored = stored
        return places.keys()

    async def let_go(self) -> None:
        await self._lost(list(self._next))

    async def stop(self) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)


def _log_record(topic: str, partition: int, stored: StoredRecord) -> LogRecord:
    record = unpack_record(stored.frame)
    return LogRecord(topic, partition, stored.offset, stored.timestamp, record.key, record.value, record.headers)
