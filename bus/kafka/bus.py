"""The log as topics in a Kafka cluster."""

from __future__ import annotations

import asyncio
import logging
from collections import ChainMap, Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

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
    WriteRefused,
    unknown_topics,
    wall_clock,
)
from duemq.bus.kafka.clock.clock_probe import ClockProbe
from duemq.bus.kafka.clock.clock_topic import ClockTopic
from duemq.bus.kafka.fetch.ends import LogEnds
from duemq.bus.kafka.fetch.fetcher import Fetcher
from duemq.bus.kafka.fetch.reader import BrokerReader
from duemq.bus.kafka.fetch.watch import FollowedSubscription, Watch, WatchedSubscription
from duemq.bus.kafka.options import KafkaOptions
from duemq.bus.kafka.produce.append import Appender, join_outcomes, recall_before_append
from duemq.bus.kafka.produce.choice import uses_v2
from duemq.bus.kafka.produce.decisions import Decisions
from duemq.bus.kafka.produce.kafka_committer import KafkaCommitter
from duemq.bus.kafka.produce.states import CommitterState
from duemq.bus.kafka.record_batches import refusal_of
from duemq.bus.kafka.requests.partition_producers import PartitionProducers
from duemq.bus.kafka.requests.topic_ids import topic_ids
from duemq.bus.kafka.requests.wire import EARLIEST, LATEST, Wire
from duemq.bus.kafka.topics.blocked_partitions import BlockedPartitions
from duemq.bus.kafka.topics.catalog import Catalog, TopicMetadata
from duemq.bus.kafka.topics.consumer_offsets import ConsumerOffsets
from duemq.bus.kafka.topics.own_topics import OwnTopics
from duemq.bus.kafka.topics.topics import NEVER, TopicMaker, settings_of_own, settings_of_topic
from duemq.bus.subscription import Subscriptions
from duemq.model.errors import DuemqError, Fenced, LogFailed, Rejected, Unavailable
from duemq.model.failpoint import Failpoint, no_failpoint
from duemq.model.messages.names import CursorName
from duemq.model.messages.record import Partition, StoredRecord

log = logging.getLogger(__name__)

_CLOSE_S = 5.0
_GONE = "topic {!r} of duemq's own is missing, or duemq's user may not describe it"
_SOON_S, _PATIENCE = 0.005, 100


class KafkaBus:
    """The bus on a Kafka cluster, created by `open`.

    It recovers from outages of brokers; `trouble` reports them.
    """

    marker_offsets = 1

    def __init__(
        self,
        options: KafkaOptions,
        clock: Callable[[], int],
        failpoint: Failpoint = no_failpoint,
        abandoned: Collection[str] = (),
    ) -> None:
        self.options, self._clock, self._failpoint = options, clock, failpoint
        self._abandoned = {options.transactional_id(name): name for name in abandoned}
        self._end_reason: DuemqError | None = None
        self.subscriptions = Subscriptions(self._check)
        self.wire = Wire(options.client())
        self.ends = LogEnds()
        self.catalog = Catalog(self.wire, self._drop_topic)
        self._maker = TopicMaker(self.wire, self.catalog, options)
        self._own_topics = OwnTopics(self.wire, self.catalog, self._maker, self._begin_again)
        self.own = self._own_topics.partitions
        self._incarnations: Counter[str] = Counter()
        self.fetcher = Fetcher(
            self.wire, options.buffer_bytes, self.subscriptions.wake, self.ends.end_of, self._own_topics.doubt
        )
        self._reader = BrokerReader(self.wire, self._saw_end)
        self._watch = Watch(self.wire, self.catalog, self._saw_end)
        self.consumer_offsets = ConsumerOffsets(self.wire, options.names.cursors)
        self._producers = PartitionProducers(self.wire)
        # Separate producers, so that a slow or refusing topic does not delay commands: a broker handles a producer's
        # requests one at a time, and a producer fails as a whole.
        self.commands, self._administrative, self.to_topics = (
            Appender(options, self.catalog, self._on_end, clock) for _ in range(3)
        )
        self.clock_probe = ClockProbe(clock)
        self._clock_topic = ClockTopic(self.wire, self._maker, options, clock)
        self.blocked_partitions = BlockedPartitions(
            self.wire, self._producers, self.own, clock, self._abandoned, self._end_abandoned
        )
        self._committers: dict[str, KafkaCommitter] = {}
        self._decisions: defaultdict[str, Decisions] = defaultdict(Decisions)
        self._naming: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        options: KafkaOptions,
        clock: Callable[[], int] = wall_clock,
        failpoint: Failpoint = no_failpoint,
        abandoned: Collection[str] = (),
    ) -> KafkaBus:
        """`abandoned`: committers that are opened for single appends only. A process may have died during a transaction
        of such a committer. This bus ends that transaction: when it opens, and later whenever the transaction blocks a
        partition.

        Raises BadConfig if the brokers refuse us or a setting cannot work, Unavailable if the brokers are out of reach.
        """
        bus = cls(options, clock, failpoint, abandoned)
        await bus.wire.open()
        try:
            await bus.commands.open()
        except BaseException:
            await bus.wire.close()
            raise
        for work, name in (
            (bus.fetcher.run(), "kafka tails"),
            (bus._watch.run(), "kafka watch"),
            (bus.wire.keep_asking(), "kafka ping"),
            (bus._own_topics.run(), "kafka own topics"),
            (bus.blocked_partitions.run(), "kafka blocked partitions"),
        ):
            task = asyncio.create_task(work, name=name)
            task.add_done_callback(bus._on_task_end)
            bus._tasks.append(task)
        return bus

    # --- writing --------------------------------------------------------------------------------------------------

    @property
    def ahead(self) -> KafkaBus:
        return self

    async def append(self, batches: Batches, *, for_answer: bool = False) -> AppendResults:
        self._check()
        batches = {where: frames for where, frames in batches.items() if frames}
        for (topic, partition), frames in batches.items():
            metadata = await recall_before_append(self.catalog, topic)
            if metadata is None and topic in self.own:
                raise Unavailable(_GONE.format(topic))
            _check_frames(topic, partition, metadata, frames)
        self._check()
        ends = {where: self.ends.end_of(where) for where in batches if where[0] in self._own_topics.vital}
        parts: defaultdict[Appender, dict[Partition, Sequence[bytes]]] = defaultdict(dict)
        for where, frames in batches.items():
            parts[self._appender_to(where[0])][where] = frames
        if len(parts) == 1:
            ((appender, part),) = parts.items()
            outcomes = await appender.append(part)
        else:
            appends = [appender.append(part) for appender, part in parts.items()]
            outcomes = dict(ChainMap(*map(dict, await asyncio.gather(*appends))))
        results = join_outcomes(outcomes)
        self.wire.record_answer()
        for where, end in ends.items():
            if results[where].first_offset < end:  # the shard has already read past this offset
                self._end_reason = LogFailed(
                    f"topic {where[0]!r}, partition {where[1]}, ended at offset {end}, and takes records at "
                    f"{results[where].first_offset}: it was recreated"
                )
                self._check()
        return results

    def _appender_to(self, topic: str) -> Appender:
        if topic not in self.own:
            return self.to_topics
        return self.commands if topic in self._own_topics.vital else self._administrative

    async def committer(self, name: str, written: TopicNames = unknown_topics) -> KafkaCommitter:
        self._check()
        async with self._naming[name]:
            older = self._committers.pop(name, None)
            if older is not None:
                await older.retire()
            committer = KafkaCommitter(
                name, self.options, self.wire, self.catalog, self.own, self._producers, written, self._clock,
                self._on_commit, self._decisions[name], await uses_v2(self.options, self.wire), self._failpoint,
            )  # fmt: skip
            self._committers[name] = committer
            await committer.open()
        self._check()
        return committer

    # --- reading --------------------------------------------------------------------------------------------------

    async def read(
        self, topic: str, partition: int, offset: int, max_records: int, max_bytes: int = 8 << 20
    ) -> list[StoredRecord]:
        self._check()
        where = (topic, partition)
        if topic not in self.own:
            if not await self._exists(topic, partition):
                return []
            return await self._reader.read(where, offset, max_records, max_bytes, self.ends.end_of(where))
        if not 0 <= partition < self.own[topic]:
            return []
        while True:
            in_memory = self.fetcher.read(where, offset, max_records, max_bytes)
            if in_memory is not None:
                return in_memory
            first = self.fetcher.first(where)
            records = await self._reader.read(where, offset, max_records, max_bytes, first)
            if records:
                return records
            offset = first

    async def end_offset(self, topic: str, partition: int) -> int:
        self._check()
        where = (topic, partition)
        if not await self._exists(topic, partition):
            return 0
        own = self.ends.end_of(where)
        for attempt in range(_PATIENCE):
            end = (await self.wire.offsets([where], LATEST))[where]
            if end >= own:
                self._saw_end(where, end)
                return end
            # Frames that this process committed are not visible yet: the broker is still writing the transaction's
            # markers, or it is a former leader that does not know that it was replaced.
            if attempt == _PATIENCE // 2:
                await self.wire.refresh()
            await asyncio.sleep(_SOON_S)
        if topic not in self.own:  # ends of duemq's own topics never go back: `Fetcher` relies on this
            self.ends.set(where, end)  # another client's older transaction is open, or the topic was recreated
        return end

    async def sure_end(self, topic: str, partition: int, *, committed: bool = True) -> int:
        self._check()
        if not await self._exists(topic, partition):
            return 0
        return await self.wire.sure_end((topic, partition), committed=committed)

    async def start_offset(self, topic: str, partition: int) -> int:
        self._check()
        if not await self._exists(topic, partition):
            return 0
        return (await self.wire.offsets([(topic, partition)], EARLIEST))[topic, partition]

    async def first_since(self, topic: str, partition: int, timestamp: int) -> int:
        self._check()
        if not await self._exists(topic, partition):
            return 0
        where = (topic, partition)
        young = (await self.wire.offsets([where], timestamp))[where]
        return young if young >= 0 else (await self.wire.offsets([where], LATEST))[where]

    def reach(self, topic: str, partition: int) -> int:
        self._check()
        where = (topic, partition)
        return self.fetcher.reach(where) if topic in self.own else self.ends.end_of(where)

    def subscribe(self, topic: str, partition: int | None = None) -> Subscription:
        self._check()
        inner = self.subscriptions.add(topic, partition)
        if topic not in self.own:
            return WatchedSubscription(inner, self._watch, (topic, partition))
        partitions = [(topic, each) for each in (range(self.own[topic]) if partition is None else (partition,))]
        for where in partitions:
            self.fetcher.follow(where, self.ends.find(where))

        def want() -> None:
            for where in partitions:
                self.fetcher.want(where)

        return FollowedSubscription(inner, want)

    # --- topics ---------------------------------------------------------------------------------------------------

    async def create_topic(self, topic: str, partitions: int) -> TopicInfo:
        self._check()
        if not 1 <= partitions <= 0xFFFF:
            raise ValueError(f"a topic has 1 to 65535 partitions, not {partitions}")
        await self._maker.ensure(topic, partitions, settings_of_topic(self.options))
        return await self._info(topic)

    async def create_log(
        self, topic: str, partitions: int, *, expires: bool = True, in_ids: bool = False, vital: bool = True
    ) -> TopicInfo:
        self._check()
        settings = settings_of_own(self.options, None if expires else NEVER)
        make = self._own_topics.make if vital else self._own_topics.offer
        return await make(topic, partitions, settings)

    def incarnation(self, topic: str) -> int:
        return self._incarnations[topic]

    def topic_state(self, topic: str) -> TopicState | None:
        self._check()
        metadata = self.catalog.lately(topic)
        return None if metadata is None else metadata.topic_state

    async def look_up_topics(self, topics: Collection[str]) -> None:
        self._check()
        await self.catalog.refresh(topics)
        if len(topics) == 1 and (denied := self.catalog.denied.intersection(topics)):
            (topic,) = denied
            raise WriteRefused(topic, "not_authorized", f"duemq's user may not describe topic {topic!r}")

    async def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        self._check()
        return await self.wire.retry(lambda: topic_ids(self.wire.client, topics))

    def misfits(self) -> Mapping[str, str]:
        return {topic: why for (topic, _), why in self.troubles().items()} | self._own_topics.misfits

    def blocked(self) -> Mapping[Partition, BlockingTransaction]:
        return self.blocked_partitions.now

    async def topic(self, topic: str) -> TopicInfo | None:
        self._check()
        if topic not in await self.catalog.refresh([topic]):
            return None
        info = await self._info(topic)
        if info.trouble and topic in self.own:
            raise LogFailed(f"topic {topic!r}: {info.trouble}")
        return info

    async def topics(self) -> list[TopicInfo]:
        self._check()
        own = self.options.names.own
        return await self.catalog.infos([topic for topic in await self.catalog.refresh() if own(topic) is not None])

    async def trim(self, topic: str, partition: int, before_offset: int) -> None:
        self._check()
        if await self._exists(topic, partition):
            end = (await self.wire.offsets([(topic, partition)]))[topic, partition]
            await self._cut({(topic, partition): min(before_offset, end)})

    async def trim_older_than(self, topic: str, timestamp: int) -> None:
        self._check()
        metadata = (await self.catalog.find([topic])).get(topic)
        if metadata is not None:
            partitions = [(topic, partition) for partition in range(metadata.partitions)]
            young = await self.wire.offsets(partitions, timestamp)
            ends = await self.wire.offsets(partitions, LATEST)
            await self._cut({where: offset if offset >= 0 else ends[where] for where, offset in young.items()})

    async def reclaim(self) -> None:
        self._check()  # brokers free their disks without our help

    async def get_consumer_cursor(self, topic: str, consumer: CursorName) -> bytes | None:
        self._check()
        return await self.consumer_offsets.get(topic, consumer)

    async def set_consumer_cursor(self, topic: str, consumer: CursorName, cursor: bytes) -> None:
        self._check()
        await self.consumer_offsets.put(topic, consumer, cursor)

    async def begin_group(self, topic: str, group: str, offsets: Sequence[int]) -> None:
        self._check()
        if offsets:  # Kafka keeps no offsets of a missing topic
            await self.consumer_offsets.begin_group(topic, group, offsets)

    async def group_position(self, topic: str, group: str, partition: int) -> GroupPosition | None:
        self._check()
        return await self.consumer_offsets.group_position(topic, group, partition)

    async def readers(self, topic: str) -> list[str]:
        self._check()
        info = await self.topic(topic)
        return await self.consumer_offsets.readers(topic, info.partitions) if info else []

    # --- status ---------------------------------------------------------------------------------------------------

    async def checkpoint(self, into: Path) -> bool:
        return False

    def disk_bytes(self) -> int:
        return 0  # the log is on the brokers' disks

    def trouble(self) -> str | None:
        return str(self._end_reason) if self._end_reason is not None else self.wire.trouble()

    def troubles(self) -> Mapping[Partition, str]:
        return self.fetcher.troubles() | self._own_topics.unled()

    async def clock_offset_ms(self) -> float:
        self._check()
        return await self.clock_probe.measure(self._clock_topic.ask)

    async def close(self) -> None:
        if self._closing is None:
            self._end_reason = self._end_reason or Unavailable("the log is closed")
            self.subscriptions.wake_all()
            self._closing = asyncio.create_task(self._close(), name="kafka close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.catalog.close()
        writers: list[Appender | KafkaCommitter] = [
            self.commands, self._administrative, self.to_topics, *self._committers.values()
        ]  # fmt: skip
        parts = [writer.close() for writer in writers]
        outcomes = await asyncio.gather(*(asyncio.wait_for(part, _CLOSE_S) for part in parts), return_exceptions=True)
        outcomes += await asyncio.gather(self.wire.close(), return_exceptions=True)
        for error in outcomes:
            if error is not None:
                log.warning("closing the kafka bus: %r", error, extra={"action": "kafka_close"})

    # --- internals ------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._end_reason is not None:
            raise type(self._end_reason)(str(self._end_reason))

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        if self._end_reason is None and not task.cancelling():
            why = "it was cancelled" if task.cancelled() else repr(task.exception())
            log.error("%s ended: %s", task.get_name(), why, extra={"action": "kafka_died"})
            self._end_reason = Unavailable(f"the kafka bus failed: {task.get_name()} ended: {why}")
            self.subscriptions.wake_all()

    async def _end_abandoned(self, transactional_id: str) -> None:
        """End the open transaction of a dead process, unless this process is using the same committer."""
        name = self._abandoned[transactional_id]
        running = self._committers.get(name)
        if running is not None and running.state is not CommitterState.ENDED:
            return
        try:
            await (await self.committer(name, frozenset)).close()
        except (Unavailable, Fenced) as error:
            log.warning("what committer %s left open cannot be ended now: %s", name, error, extra={"action": "fence"})

    async def _exists(self, topic: str, partition: int) -> bool:
        """Whether this partition exists. Raises LogFailed if one of duemq's own topics is missing: an empty answer
        would be wrong."""
        metadata = await self.catalog.recall(topic)
        if metadata is None and topic in self.own:
            raise LogFailed(_GONE.format(topic))
        return metadata is not None and 0 <= partition < metadata.partitions

    async def _info(self, topic: str) -> TopicInfo:
        infos = await self.catalog.infos([topic])
        if not infos:
            raise UnknownTopic(topic)
        return infos[0]

    async def _cut(self, before: dict[Partition, int]) -> None:
        await self.wire.cut(before)
        for where, offset in before.items():
            self._reader.drop(where)
            self.fetcher.trim(where, offset)

    def _begin_again(self, topic: str) -> None:
        """Make the readers start again at the beginning of a topic that was recreated or truncated. The topic is one of
        duemq's own that is not vital."""
        log.error(
            "topic %s was recreated or truncated: its records are lost", topic,
            extra={"action": "made_again", "topic": topic},
        )  # fmt: skip
        self._incarnations[topic] += 1
        self.ends.forget(topic)
        self._reader.forget(topic)
        self.fetcher.restart(topic)
        self.subscriptions.wake([(topic, partition) for partition in range(self.own[topic])])

    def _drop_topic(self, topic: str) -> None:
        """Forget a topic's ends and records: a later topic with the same name has others."""
        if topic not in self.own:
            self.ends.forget(topic)
            self._reader.forget(topic)

    def _on_end(self, where: Partition, end: int) -> None:
        before = self.ends.find(where)
        if before is None or end > before:
            self.ends.set(where, end)
            # Readers of a followed partition are woken when its frames arrive.
            if not self.fetcher.follows(where):
                self.subscriptions.wake((where,))

    def _saw_end(self, where: Partition, end: int) -> None:
        """Record a partition's end as the broker reported it. Readers are not woken the first time, when it is unknown
        whether the partition grew."""
        if self.ends.find(where) is None:
            self.ends.set(where, end)
        else:
            self._on_end(where, end)

    def _on_commit(self, results: AppendResults, before: int, after: int) -> None:
        self.wire.record_answer()
        for where, batch in results.items():
            # Once the first frame of a transaction can be read, all can.
            self._on_end(where, batch.first_offset + 1)
            if where[0] in self.own:
                self.clock_probe.sample(batch.timestamp, before, after)


def _check_frames(topic: str, partition: int, metadata: TopicMetadata | None, frames: Sequence[bytes]) -> None:
    if metadata is None or not 0 <= partition < metadata.partitions:
        raise UnknownTopic(topic, partition if metadata is not None else None)
    why = refusal_of(topic, frames, metadata.max_frame_bytes)
    if why is not None:
        raise Rejected("payload_too_large", why)
