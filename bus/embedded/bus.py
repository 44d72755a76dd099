"""A durable log in one RocksDB database: duemq's broker within its own process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from rocksdict import Rdict

from duemq.bus.base import (
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
from duemq.bus.embedded import layout
from duemq.bus.embedded.chunk import Chunk
from duemq.bus.embedded.chunk_reader import ChunkReader
from duemq.bus.embedded.compactor import Compactor
from duemq.bus.embedded.group_commit import CommitGroup, GroupCommit, Trim
from duemq.bus.embedded.layout import PartitionStart
from duemq.bus.embedded.log_topic import LogPartition, LogTopic, load_topics, new_topic
from duemq.bus.embedded.log_view import AheadView, DurableView
from duemq.bus.embedded.rocksdb_log import folder_bytes, link_log, open_log
from duemq.bus.embedded.sync.aio import Aio
from duemq.bus.embedded.sync.log_sync import kernel_aio
from duemq.bus.embedded.tail import RecentChunks, TailCache
from duemq.bus.topic_cursor import encode_cursor, position_in
from duemq.model.errors import DuemqError, Fenced, FolderRefused, Unavailable
from duemq.model.messages.ids import MAX_OFFSET, RESTORED
from duemq.model.messages.names import MAX_READERS, PURGES, CursorName, group_cursor, reader_of
from duemq.model.messages.record import Partition, StoredRecord
from duemq.model.rocksdb_errors import translate_errors

log = logging.getLogger(__name__)

TAIL_BYTES: Final = 64 << 20


class EmbeddedBus:
    """See `Bus` for the guarantees. It is created by `open`, used in one event loop, and closed by its owner.

    After a failed write every call raises StoreFailed: close the bus and open it again.
    """

    marker_offsets = 0

    def __init__(
        self,
        folder: Path,
        db: Rdict,
        buffer_bytes: int,
        clock: Callable[[], int],
        failpoint: Callable[[str], None] | None,
        aio: Callable[[], Aio | None],
        on_sync: Callable[[bool], None],
    ) -> None:
        self._folder, self.db, self._clock = folder, db, clock
        self._topics, self._latest = load_topics(db)
        self._epochs: dict[str, int] = {}
        self._tails = TailCache(buffer_bytes)
        self._history = ChunkReader(db)
        self.compactor = Compactor(db)
        self._commits = GroupCommit(db, self._time, self._publish, self._on_end, failpoint, aio, on_sync)
        self._durable = DurableView(self._find, self._commits, self._history)
        self.ahead = AheadView(self._find, self._commits, self._history)
        self._closing = asyncio.Lock()
        self._closed = False

    @classmethod
    async def open(
        cls,
        folder: Path,
        *,
        buffer_bytes: int = TAIL_BYTES,
        clock: Callable[[], int] = wall_clock,
        failpoint: Callable[[str], None] | None = None,
        aio: Callable[[], Aio | None] = kernel_aio,
        on_sync: Callable[[bool], None] = lambda by_kernel: None,
    ) -> EmbeddedBus:
        """Open the log in this folder; create it if it is missing.

        `buffer_bytes` limits the memory for the newest frames. `clock` returns epoch ms. `aio` returns the kernel's
        asynchronous IO for syncs, or None. `on_sync` is called for each sync; its argument is true if the kernel does
        it asynchronously. Raises FolderRefused, CorruptStore, DiskFull or StoreFailed.
        """
        db = await asyncio.to_thread(open_log, folder)
        try:
            with translate_errors(f"reading the log in {folder}"):
                return cls(folder, db, buffer_bytes, clock, failpoint, aio, on_sync)
        except BaseException:
            db.close()
            raise

    async def append(self, batches: Batches, *, for_answer: bool = False) -> AppendResults:
        stage = partial(self._stage_append, self._partitions_of(batches))
        return await self._commits.submit(stage, awaits_cycle=for_answer)

    async def read(
        self, topic: str, partition: int, offset: int, max_records: int, max_bytes: int = 8 << 20
    ) -> list[StoredRecord]:
        return await self._durable.read(topic, partition, offset, max_records, max_bytes)

    async def end_offset(self, topic: str, partition: int) -> int:
        return self.reach(topic, partition)

    async def sure_end(self, topic: str, partition: int, *, committed: bool = True) -> int:
        return await self.end_offset(topic, partition)

    async def start_offset(self, topic: str, partition: int) -> int:
        self._commits.check()
        log_partition = self._find(topic, partition)
        return 0 if log_partition is None else log_partition.start.offset

    async def first_since(self, topic: str, partition: int, timestamp: int) -> int:
        self._commits.check()
        log_partition = self._find(topic, partition)
        return 0 if log_partition is None else self._history.first_since(log_partition, timestamp)

    def reach(self, topic: str, partition: int) -> int:
        return self._durable.reach(topic, partition)

    def subscribe(self, topic: str, partition: int | None = None) -> Subscription:
        return self._durable.subscribe(topic, partition)

    async def committer(self, name: str, written: TopicNames = unknown_topics) -> EpochCommitter:
        epoch = await self._commits.submit(partial(self._stage_epoch, name))
        return EpochCommitter(self, name, epoch)

    async def commit(self, batches: Batches, name: str, epoch: int) -> AppendResults:
        """Commit for `EpochCommitter`, its only caller."""
        stage = partial(self._stage_commit, self._partitions_of(batches), name, epoch)
        return await self._commits.submit(stage, at_once=True)

    def topic_state(self, topic: str) -> TopicState | None:
        self._commits.check()
        log_topic = self._topics.get(topic)
        return None if log_topic is None else TopicState(len(log_topic.partitions))

    async def look_up_topics(self, topics: Collection[str]) -> None:
        self._commits.check()

    async def create_topic(self, topic: str, partitions: int) -> TopicInfo:
        if not 1 <= partitions <= layout.MAX_PARTITIONS:
            raise ValueError(f"a topic has 1 to {layout.MAX_PARTITIONS} partitions, not {partitions}")
        self._commits.check()
        log_topic = self._topics.get(topic)
        if log_topic is None:
            log_topic = await self._commits.submit(partial(self._stage_topic, topic, partitions), after_sync=True)
        return log_topic.info()

    async def create_log(
        self, topic: str, partitions: int, *, expires: bool = True, in_ids: bool = False, vital: bool = True
    ) -> TopicInfo:
        log_that_fits(await self.create_topic(topic, partitions), partitions)
        if in_ids and (mark := self._folder / RESTORED).exists():
            await self._commits.submit(partial(self._stage_gaps, self._topics[topic]), after_sync=True)
            with translate_errors(mark):
                mark.unlink()  # if a crash prevents this, the next start leaves another gap
        return self._topics[topic].info()

    async def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        return {}  # only this process uses this log, and it never drops a topic

    def incarnation(self, topic: str) -> int:
        return 0

    def misfits(self) -> Mapping[str, str]:
        return {}

    def blocked(self) -> Mapping[Partition, BlockingTransaction]:
        return {}  # commits are atomic

    async def topic(self, topic: str) -> TopicInfo | None:
        self._commits.check()
        log_topic = self._topics.get(topic)
        return None if log_topic is None else log_topic.info()

    async def topics(self) -> list[TopicInfo]:
        self._commits.check()
        return [topic.info() for topic in self._topics.values()]

    async def trim(self, topic: str, partition: int, before_offset: int) -> None:
        self._commits.check()
        log_partition = self._find(topic, partition)
        if log_partition is not None and before_offset > log_partition.start.offset:
            await self._commits.submit(partial(self._stage_trim, log_partition, before_offset), after_sync=True)

    async def trim_older_than(self, topic: str, timestamp: int) -> None:
        self._commits.check()
        log_topic = self._topics.get(topic)
        for partition in log_topic.partitions if log_topic else ():
            await self.trim(topic, partition.number, await self.first_since(topic, partition.number, timestamp))
            await asyncio.sleep(0)
            self._commits.check()

    async def reclaim(self) -> None:
        self._commits.check()
        await self.compactor.now()

    async def get_consumer_cursor(self, topic: str, consumer: CursorName) -> bytes | None:
        self._commits.check()
        with translate_errors(f"reading the place of consumer {consumer!r}"):
            place: bytes | None = self.db.get(layout.cursor_key(topic, consumer))
            return place

    async def set_consumer_cursor(self, topic: str, consumer: CursorName, cursor: bytes) -> None:
        key = layout.cursor_key(topic, consumer)
        await self._commits.submit(lambda group: group.batch.put(key, cursor) if cursor else group.batch.delete(key))

    async def begin_group(self, topic: str, group: str, offsets: Sequence[int]) -> None:
        await self.set_consumer_cursor(topic, group_cursor(group), encode_cursor(topic, offsets).encode())

    async def group_position(self, topic: str, group: str, partition: int) -> GroupPosition | None:
        return position_in(await self.get_consumer_cursor(topic, group_cursor(group)), topic, partition)

    async def readers(self, topic: str) -> list[str]:
        self._commits.check()
        names, prefix = list[str](), layout.cursors_of(topic)
        with translate_errors(f"listing the readers of topic {topic}"):
            rows = self.db.iter()
            rows.seek(prefix)
            while rows.valid() and rows.key().startswith(prefix) and len(names) < MAX_READERS:
                if (name := layout.read_cursor_key(rows.key())[1]) != PURGES:
                    names.append(reader_of(name))
                rows.next()
            rows.status()
        return sorted(names)

    async def checkpoint(self, into: Path) -> bool:
        self._commits.check()
        await asyncio.to_thread(link_log, self.db, into)
        return True

    def disk_bytes(self) -> int:
        return folder_bytes(self._folder)

    def trouble(self) -> str | None:
        try:
            self._commits.check()
        except Unavailable as error:
            return error.detail
        return None

    def troubles(self) -> Mapping[Partition, str]:
        return {}

    async def clock_offset_ms(self) -> float:
        return 0.0

    async def close(self) -> None:
        """Finish pending requests, then release the folder. Idempotent. Afterwards every other call raises
        Unavailable."""
        async with self._closing:
            if self._closed:
                return
            self._closed = True
            await self._commits.close()
            stopped = await self.compactor.close()
            try:
                with translate_errors(f"closing the log in {self._folder}"):
                    self.db.close()
            except DuemqError as error:
                # RocksDB refuses its last flush after a failure or once it was stopped. The folder is released anyway,
                # and everything that was acknowledged is in the synced write-ahead log.
                if not (stopped or self._commits.failed):
                    raise
                log.info("log: closed without a last flush: %s", error, extra={"action": "log_closed"})

    def _find(self, topic: str, partition: int) -> LogPartition | None:
        log_topic = self._topics.get(topic)
        return log_topic.partitions[partition] if log_topic and 0 <= partition < len(log_topic.partitions) else None

    def _partitions_of(self, batches: Batches) -> list[tuple[LogPartition, Sequence[bytes]]]:
        self._commits.check()
        appends = []
        for (topic, partition), frames in batches.items():
            log_partition = self._find(topic, partition)
            if log_partition is None:
                raise UnknownTopic(topic, partition if topic in self._topics else None)
            appends.append((log_partition, frames))
        return appends

    def _time(self) -> int:
        self._latest = max(self._latest, self._clock())
        return self._latest

    def _stage_append(self, appends: list[tuple[LogPartition, Sequence[bytes]]], group: CommitGroup) -> AppendResults:
        results = {partition.name: group.append(partition, frames) for partition, frames in appends}
        self.ahead.subscriptions.wake([partition.name for partition, frames in appends if frames])
        return results

    def _stage_commit(
        self, appends: list[tuple[LogPartition, Sequence[bytes]]], name: str, epoch: int, group: CommitGroup
    ) -> AppendResults:
        newest = self._epochs[name]
        if epoch < newest:
            raise Fenced(f"committer {name!r} of epoch {epoch} was replaced by epoch {newest}")
        return self._stage_append(appends, group)

    def _stage_epoch(self, name: str, group: CommitGroup) -> int:
        epoch = self._epochs.get(name)
        if epoch is None:
            with translate_errors(f"reading the epoch of committer {name!r}"):
                row = self.db.get(layout.epoch_key(name))
            epoch = 0 if row is None else int.from_bytes(row, "big")
        self._epochs[name] = epoch + 1
        group.batch.put(layout.epoch_key(name), layout.NUMBER.pack(epoch + 1))
        return epoch + 1

    def _stage_topic(self, name: str, partitions: int, group: CommitGroup) -> LogTopic:
        log_topic = self._topics.get(name) or group.topics.get(name)
        if log_topic is None:
            number = 1 + len(self._topics) + len(group.topics)  # unique, because no topic is ever dropped
            log_topic = group.topics[name] = new_topic(name, number, partitions)
            group.batch.put(layout.topic_key(name), layout.TOPIC.pack(number, partitions, group.timestamp))
        return log_topic

    def _stage_gaps(self, log_topic: LogTopic, group: CommitGroup) -> None:
        """Stage a gap at the end of each partition. No records are staged in the same group: see `create_log`."""
        for partition in log_topic.partitions:
            first, end = partition.end, partition.end + layout.UNUSED
            if end + layout.UNUSED > MAX_OFFSET:
                raise FolderRefused(
                    f"the log in {self._folder} was restored {end // layout.UNUSED - 1} times, and has no offsets left "
                    "that were never in an id: move to a server with an empty folder"
                )
            gaps = partition.gaps
            if gaps and gaps[-1][1] == first:
                first, gaps = gaps[-1][0], gaps[:-1]
            group.gaps[partition] = (*gaps, (first, end))
            group.batch.put(partition.gaps_key, b"".join(layout.GAP.pack(*gap) for gap in group.gaps[partition]))

    def _stage_trim(self, partition: LogPartition, before: int, group: CommitGroup) -> None:
        before = min(before, partition.end)
        if partition in group.trims or before <= partition.start.offset:
            return  # a later call trims it
        cut, position = before, partition.position
        if before < partition.end:
            at = partition.skip(before)
            if at < partition.end:
                chunk = self._chunk_at(partition, at)  # a chunk that is only partly below the offset is kept whole
                cut, position = min(before, chunk.first), chunk.position
        start = PartitionStart(before, group.timestamp, position)
        group.trims[partition] = Trim(start, cut)
        group.batch.put(partition.start_key, layout.START.pack(*start))
        if cut > partition.cut:
            # Never delete the same keys twice: overlapping ranges cost RocksDB quadratic time.
            group.batch.delete_range(partition.key(partition.cut), partition.key(cut))

    def _chunk_at(self, partition: LogPartition, offset: int) -> Chunk:
        if offset >= partition.tail.first:
            return next(partition.tail.chunks_from(offset))
        return self._history.chunk_at(partition, offset)

    def _publish(self, group: CommitGroup) -> None:
        self._topics.update(group.topics)
        for partition, gaps in group.gaps.items():
            partition.gaps = gaps
            partition.end = partition.assigned = gaps[-1][1]
            partition.tail = RecentChunks(partition.end)
        for partition, chunk in group.chunks:
            partition.end = chunk.end
            partition.position += chunk.size
            self._tails.add(partition.tail, chunk)
        for partition, trim in group.trims.items():
            self.compactor.record_trim(
                partition.key(0), partition.key(trim.cut), trim.start.position - partition.start.position
            )
            partition.start, partition.cut = trim
        self._durable.subscriptions.wake({partition.name for partition, _ in group.chunks})

    def _on_end(self) -> None:
        self._durable.subscriptions.wake_all()
        self.ahead.subscriptions.wake_all()
