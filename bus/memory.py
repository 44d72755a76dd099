"""The log in plain memory: for tests, and the shortest example of a bus.

A `MemoryLog` outlives its buses, as a folder outlives processes: a test drops one `MemoryBus` and opens another on the
same log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from duemq.bus.base import (
    AppendResult,
    AppendResults,
    Batches,
    BlockingTransaction,
    GroupPosition,
    Subscription,
    TopicInfo,
    TopicNames,
    TopicState,
    UnknownTopic,
    log_that_fits,
    unknown_topics,
    wall_clock,
)
from duemq.bus.committer import EpochCommitter
from duemq.bus.subscription import Subscriptions
from duemq.bus.topic_cursor import encode_cursor, position_in
from duemq.model.errors import DuemqError, Fenced, StoreFailed, Unavailable
from duemq.model.messages.names import MAX_READERS, PURGES, CursorName, group_cursor, reader_of
from duemq.model.messages.record import Partition, StoredRecord


@dataclass
class MemoryPartition:
    """One partition. `frames[0]` is the frame at the offset `start`."""

    start: int = 0
    frames: list[StoredRecord] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.frames)


class MemoryLog:
    """The durable part of the bus. `clock` returns epoch ms."""

    def __init__(self, clock: Callable[[], int] = wall_clock) -> None:
        self.topics: dict[str, list[MemoryPartition]] = {}
        self.epochs: dict[str, int] = {}
        self.places: dict[tuple[str, str], bytes] = {}
        self.buses: set[MemoryBus] = set()
        self.ids: dict[str, str] = {}  # ids of topics; tests set them
        self._clock = clock
        self._latest = 0

    def find(self, topic: str, partition: int) -> MemoryPartition | None:
        partitions = self.topics.get(topic, [])
        return partitions[partition] if 0 <= partition < len(partitions) else None

    def add(self, batches: Batches) -> AppendResults:
        self._latest = max(self._latest, self._clock())
        results = {}
        for name, frames in batches.items():
            partition = self.topics[name[0]][name[1]]
            results[name] = AppendResult(partition.end, self._latest)
            partition.frames += [
                StoredRecord(at, self._latest, frame) for at, frame in enumerate(frames, partition.end)
            ]
        for bus in self.buses:
            bus.subscriptions.wake(name for name, frames in batches.items() if frames)
        return results

    def info(self, topic: str) -> TopicInfo:
        partitions = self.topics[topic]
        return TopicInfo(
            topic,
            len(partitions),
            tuple(partition.start for partition in partitions),
            tuple(partition.end for partition in partitions),
        )


class MemoryBus:
    """One process's view of a log.

    `failpoint` is called with "before_write", "after_write" and "after_sync", as in the embedded bus. If it raises, the
    bus has failed; the batches are in the log, unless it raised before the write. `refuse` is called with the batches
    of every append and commit. If it raises, only the caller gets the error: nothing is written, and the bus stays
    usable.
    """

    marker_offsets = 0

    def __init__(
        self,
        log: MemoryLog,
        *,
        failpoint: Callable[[str], None] | None = None,
        refuse: Callable[[Batches], None] | None = None,
    ) -> None:
        self.log, self._failpoint, self._refuse = log, failpoint, refuse
        self._end_reason: DuemqError | None = None
        self.subscriptions = Subscriptions(self._check)
        log.buses.add(self)

    @property
    def ahead(self) -> MemoryBus:
        return self

    async def append(self, batches: Batches, *, for_answer: bool = False) -> AppendResults:
        return await self._add(batches)

    async def commit(self, batches: Batches, name: str, epoch: int) -> AppendResults:
        """Commit for `EpochCommitter`, its only caller."""
        return await self._add(batches, name, epoch)

    async def read(
        self, topic: str, partition: int, offset: int, max_records: int, max_bytes: int = 8 << 20
    ) -> list[StoredRecord]:
        self._check()
        log_partition = self.log.find(topic, partition)
        records: list[StoredRecord] = []
        if log_partition is None or max_records < 1:
            return records
        skipped = max(offset - log_partition.start, 0)
        for record in log_partition.frames[skipped : skipped + max_records]:
            max_bytes -= len(record.frame)
            if records and max_bytes < 0:
                break
            records.append(record)
        return records

    async def end_offset(self, topic: str, partition: int) -> int:
        return self.reach(topic, partition)

    async def sure_end(self, topic: str, partition: int, *, committed: bool = True) -> int:
        return await self.end_offset(topic, partition)

    async def start_offset(self, topic: str, partition: int) -> int:
        self._check()
        log_partition = self.log.find(topic, partition)
        return 0 if log_partition is None else log_partition.start

    async def first_since(self, topic: str, partition: int, timestamp: int) -> int:
        self._check()
        log_partition = self.log.find(topic, partition)
        if log_partition is None:
            return 0
        return next(
            (record.offset for record in log_partition.frames if record.timestamp >= timestamp), log_partition.end
        )

    def reach(self, topic: str, partition: int) -> int:
        self._check()
        log_partition = self.log.find(topic, partition)
        return 0 if log_partition is None else log_partition.end

    def subscribe(self, topic: str, partition: int | None = None) -> Subscription:
        self._check()
        return self.subscriptions.add(topic, partition)

    async def committer(self, name: str, written: TopicNames = unknown_topics) -> EpochCommitter:
        await self._turn()
        epoch = self.log.epochs[name] = self.log.epochs.get(name, 0) + 1
        return EpochCommitter(self, name, epoch)

    def topic_state(self, topic: str) -> TopicState | None:
        self._check()
        partitions = self.log.topics.get(topic)
        return None if partitions is None else TopicState(len(partitions))

    async def look_up_topics(self, topics: Collection[str]) -> None:
        await self._turn()

    async def create_topic(self, topic: str, partitions: int) -> TopicInfo:
        if not 1 <= partitions <= 0xFFFF:
            raise ValueError(f"a topic has 1 to 65535 partitions, not {partitions}")
        await self._turn()
        self.log.topics.setdefault(topic, [MemoryPartition() for _ in range(partitions)])
        return self.log.info(topic)

    async def create_log(
        self, topic: str, partitions: int, *, expires: bool = True, in_ids: bool = False, vital: bool = True
    ) -> TopicInfo:
        return log_that_fits(await self.create_topic(topic, partitions), partitions)

    async def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        self._check()
        return {topic: self.log.ids[topic] for topic in topics if topic in self.log.ids}

    def incarnation(self, topic: str) -> int:
        return 0

    def misfits(self) -> Mapping[str, str]:
        return {}

    def blocked(self) -> Mapping[Partition, BlockingTransaction]:
        return {}  # commits are atomic

    async def topic(self, topic: str) -> TopicInfo | None:
        self._check()
        return self.log.info(topic) if topic in self.log.topics else None

    async def topics(self) -> list[TopicInfo]:
        self._check()
        return [self.log.info(topic) for topic in self.log.topics]

    async def trim(self, topic: str, partition: int, before_offset: int) -> None:
        await self._turn()
        log_partition = self.log.find(topic, partition)
        if log_partition is not None and before_offset > log_partition.start:
            before = min(before_offset, log_partition.end)
            del log_partition.frames[: before - log_partition.start]
            log_partition.start = before

    async def trim_older_than(self, topic: str, timestamp: int) -> None:
        for number in range(len(self.log.topics.get(topic, []))):
            await self.trim(topic, number, await self.first_since(topic, number, timestamp))

    async def reclaim(self) -> None:
        self._check()

    async def get_consumer_cursor(self, topic: str, consumer: CursorName) -> bytes | None:
        self._check()
        return self.log.places.get((topic, consumer))

    async def set_consumer_cursor(self, topic: str, consumer: CursorName, cursor: bytes) -> None:
        await self._turn()
        self.log.places[topic, consumer] = cursor
        if not cursor:
            del self.log.places[topic, consumer]

    async def begin_group(self, topic: str, group: str, offsets: Sequence[int]) -> None:
        await self.set_consumer_cursor(topic, group_cursor(group), encode_cursor(topic, offsets).encode())

    async def group_position(self, topic: str, group: str, partition: int) -> GroupPosition | None:
        return position_in(await self.get_consumer_cursor(topic, group_cursor(group)), topic, partition)

    async def readers(self, topic: str) -> list[str]:
        self._check()
        return sorted(reader_of(name) for of, name in self.log.places if of == topic and name != PURGES)[:MAX_READERS]

    async def checkpoint(self, into: Path) -> bool:
        return False

    def disk_bytes(self) -> int:
        return 0

    def trouble(self) -> str | None:
        return None if self._end_reason is None else str(self._end_reason)

    def troubles(self) -> Mapping[Partition, str]:
        return {}

    async def clock_offset_ms(self) -> float:
        return 0.0

    async def close(self) -> None:
        self._end(Unavailable("the log is closed"))

    async def _turn(self) -> None:
        """Simulate a sync: other tasks run before anything happens."""
        self._check()
        await asyncio.sleep(0)
        self._check()

    async def _add(self, batches: Batches, name: str = "", epoch: int = 0) -> AppendResults:
        self._check()
        for topic, partition in batches:
            if self.log.find(topic, partition) is None:
                raise UnknownTopic(topic, partition if topic in self.log.topics else None)
        await self._turn()
        if self._refuse is not None:
            self._refuse(batches)
        if epoch < self.log.epochs.get(name, 0):
            raise Fenced(f"committer {name!r} of epoch {epoch} was replaced by epoch {self.log.epochs[name]}")
        try:
            self._step("before_write")
            results = self.log.add(batches)
            self._step("after_write")
            self._step("after_sync")
        except Exception as error:
            self._end(StoreFailed(f"the log accepts no requests until it is reopened: {error}"))
            raise StoreFailed(f"writing the log: {error}") from error
        return results

    def _step(self, name: str) -> None:
        if self._failpoint is not None:
            self._failpoint(name)

    def _check(self) -> None:
        if self._end_reason is not None:
            raise type(self._end_reason)(self._end_reason.args[0])

    def _end(self, reason: DuemqError) -> None:
        self._end_reason = reason
        self.log.buses.discard(self)
        self.subscriptions.wake_all()
