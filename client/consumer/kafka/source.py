"""A source of messages and a store of offsets: membership in a Kafka group, or all partitions and a file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import (
    CommitFailedError,
    IllegalGenerationError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetMetadataTooLargeError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from aiokafka.errors import OffsetOutOfRangeError as OutOfRange
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from duemq.background.loop import Loop, OutageOptions
from duemq.background.outage import Outage
from duemq.bus.kafka.aiokafka_internals import (
    abandon,
    client_of,
    fetcher_of,
    mend_header_names,
    start_without_topics,
    subscription_of,
)
from duemq.bus.kafka.clients import new_consumer
from duemq.bus.kafka.requests.topic_ids import topic_ids
from duemq.client.consumer.base import FetchPosition
from duemq.client.consumer.done_ranges import Ranges
from duemq.client.consumer.kafka.identity import TopicIdentity
from duemq.client.consumer.kafka.offsets import FileOffsets
from duemq.client.consumer.kafka.parked_partitions import RECREATED, ParkedPartitions
from duemq.client.consumer.kafka.positions import MAX_BYTES, metadata_of, with_done
from duemq.client.consumer.kafka.rebalance import Rebalance
from duemq.client.consumer.kafka.starts import Starts, commit_once, named
from duemq.client.consumer.kafka.topics import partitions_of, survey
from duemq.client.consumer.options import ConsumerOptions

log = logging.getLogger(__name__)

_LOOK_S = 30.0  # between checks for new topics and partitions
_LOOK_SOON_S = (1.0, 2.0, 3.0, 5.0, 10.0)  # after the start, and after topics have appeared or disappeared
_STOP_S = 10.0
_ASK_S = 2.0
_AGAIN_S = 2.0
_MOVING_S = 0.1
_PASSING = (KafkaError, TimeoutError)
_OTHERS = (CommitFailedError, IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError)


class KafkaMessageSource:
    """One aiokafka consumer. `first`: topics that start at their first message, whatever the option `start` is."""

    def __init__(
        self,
        group: str,
        bootstrap: str,
        options: ConsumerOptions,
        topics: Sequence[str],
        first: Collection[str],
        changes: Rebalance,
        assignor: type | None = None,
    ) -> None:
        self._group, self._bootstrap, self._options = group, bootstrap, options
        self._topics, self._first, self.changes = topics, frozenset(first), changes
        session_ms, stop_ms = int(options.session_s * 1000), int(options.stop_s * 1000)
        settings: dict[str, Any] = {
            "client_id": f"duemq-{options.name}",
            "session_timeout_ms": session_ms,
            "heartbeat_interval_ms": max(session_ms // 10, 100),
            "rebalance_timeout_ms": session_ms + stop_ms,  # handlers may finish during a rebalance
            "metadata_max_age_ms": int(_LOOK_S * 1000),
            **options.kafka_of(AIOKafkaConsumer),
        }
        if assignor is not None:
            settings["partition_assignment_strategy"] = (assignor,)
        self.kafka = new_consumer(
            bootstrap_servers=bootstrap,
            group_id=None if options.broadcasting else group,
            enable_auto_commit=False,
            auto_offset_reset="none",  # any other value would skip messages silently
            isolation_level="read_committed",
            **settings,
        )
        # If a topic were missing, aiokafka would wait 40 s and then give up on all topics.
        start_without_topics(self.kafka)
        self.starts = Starts(self.kafka, options, first)
        self._file = FileOffsets(options.folder, group, options.name) if options.broadcasting else None
        self._missing: frozenset[str] = frozenset()
        self.parking = ParkedPartitions(self.kafka, self.starts, changes, self.store)
        self.identity = TopicIdentity(self.kafka, topics, self.starts, self.parking, changes)
        self._tasks: list[asyncio.Task[None]] = []
        self._pulls, self._commits = Outage("pull", group), Outage("commit", group)
        self._held_partitions: frozenset[TopicPartition] = frozenset()
        self._saving, self._comparing = asyncio.Lock(), asyncio.Lock()
        self._keeps_back = False  # a pull has fetched records that it has not returned yet
        self._metadata_bytes = MAX_BYTES
        self._marked: tuple[int, FetchPosition, frozenset[str]] | None = None  # the mark's last commit, with its turn

    async def start(self) -> None:
        """Start to fetch. Raises Rejected `member_taken`, `not_authorized` or `bad_topic`, and KafkaError."""
        if self._file is not None:
            await asyncio.to_thread(self._file.lock)
        overview = await survey(self._group, self._bootstrap, self._options, self._topics)
        self.starts.known_topics |= overview.known_topics
        self._missing = overview.missing
        if missing := sorted(overview.missing - self._first):
            log.warning(
                "consumer of group %s starts without missing topics, and keeps looking for them: %s",
                self._group, ", ".join(missing), extra={"action": "subscribe"},
            )  # fmt: skip
        if self._file is None:
            self.kafka.subscribe(self._topics, listener=self.changes)
            await self.kafka.start()
            mend_header_names(fetcher_of(self.kafka))
        else:
            stored = await asyncio.to_thread(self._file.load)
            self.starts.known_topics |= self._file.topics
            await self.kafka.start()
            mend_header_names(fetcher_of(self.kafka))
            await self._assign_all(stored)
        work = [("partitions", self.check_often), ("starts", self.parking.run), ("topics", self.compare_often)]
        self._tasks = [asyncio.create_task(run(), name=name) for name, run in work]

    async def pull(self, timeout_ms: int, most: int) -> dict[TopicPartition, list[Any]]:
        """Fetch up to `most` records. Returns no records this time if an offset is missing or out of range.

        Waits until the logs of newly assigned partitions are identified before it returns any records.
        """
        parked = self.parking.times.copy()
        try:
            partitions = self.kafka.assignment() - self._held_partitions if self._held_partitions else ()
            pulled: dict[TopicPartition, list[Any]] = await self.kafka.getmany(
                *partitions, timeout_ms=timeout_ms, max_records=most
            )
        except NoOffsetForPartitionError as error:
            self.parking.park(dict.fromkeys(error.args))
        except OutOfRange as error:
            self.changes.doubt()
            self.parking.park(error.args[0])
        except KafkaError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(self._pulls.record_failure(error))
        else:
            self._pulls.record_success()
            if not pulled or self.changes.sure.is_set():
                return pulled
            turn, self._keeps_back = self.changes.turn, True
            try:
                await self.changes.sure.wait()
            finally:
                self._keeps_back = False
            if self._file is None and turn != self.changes.turn:
                return {}  # after the rebalance, everything restarts at the committed offsets
            return {each: some for each, some in pulled.items() if self.parking.times[each] == parked[each]}
        return {}

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        """Pull no records from these partitions, and resume all others. Records already fetched are kept: pausing the
        partitions in aiokafka would drop them."""
        self._held_partitions = frozenset(partitions)

    def rewind(self, partition: TopicPartition, offset: int) -> bool:
        if partition in self.parking.parked or partition not in self.partitions():
            return False
        self.kafka.seek(partition, offset)
        return True

    async def idle(self) -> None:
        """Poll without fetching: a member that does not poll for minutes is removed from its group."""
        partitions = self.kafka.assignment() - self.kafka.paused()
        self.kafka.pause(*partitions)
        try:
            await self.pull(0, 1)
        finally:
            self.kafka.resume(*(partitions & self.kafka.assignment() - self.parking.parked.keys()))

    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions of this member; empty during a rebalance."""
        return frozenset() if self.changes.moving else frozenset(self.kafka.assignment())

    async def position(self, partition: TopicPartition) -> int | None:
        """The offset at which the next fetch starts, past transaction markers. None if the offset or the partition's
        log is unknown at present, or if the partition does not belong to this member or was reassigned during the
        call."""
        turn = self.changes.turn
        with suppress(TimeoutError, KafkaError):
            async with asyncio.timeout(_ASK_S):
                position: int = await self.kafka.position(partition)
                is_own = turn == self.changes.turn and partition in self.partitions() and self.changes.sure.is_set()
                is_known = partition not in self.parking.parked and not self._keeps_back
                return position if is_own and is_known else None
        return None

    def end(self, partition: TopicPartition) -> int | None:
        """The offset after the last record, as of the partition's last fetch."""
        end: int | None = self.kafka.highwater(partition) if partition in self.partitions() else None
        return end

    def done(self, partition: TopicPartition) -> Ranges:
        """The ranges that are done after the committed offset. A broadcasting member does not store them."""
        return self.identity.done.get(partition, ())

    def log_id(self, topic: str) -> str:
        """The topic's id; empty if the brokers have no topic ids."""
        return self.starts.ids.get(topic, "")

    async def save(self, places: Mapping[TopicPartition, FetchPosition]) -> Collection[TopicPartition]:
        """Store these positions. Returns the partitions whose positions are durable now: none if the partitions moved
        to another member or Kafka is unreachable. Parked partitions whose log may be another one are left out."""
        sure = {each: place for each, place in places.items() if each not in self.parking.unsure}
        if self._file is not None:
            offsets = {each: place.commit for each, place in sure.items()}
            await asyncio.to_thread(self._file.save, offsets, self.starts.known_topics)
            return sure.keys()
        async with self._saving:
            return await self._commit(sure)

    async def _commit(self, places: Mapping[TopicPartition, FetchPosition]) -> Collection[TopicPartition]:
        """Commit these positions; returns as `save` does. Also commits the mark (`Starts.mark`) if the group's known
        topics have changed since its last commit."""
        if not self.changes.sure.is_set():
            return ()
        turn, known_topics, mark, ids = self.changes.turn, self._known_topics(), self.starts.mark, self.starts.ids
        existing_places = {each: place for each, place in places.items() if self.kafka.partitions_for_topic(each.topic)}
        if (
            self._marked is not None
            and self._marked[0] == turn
            and self._marked[2] != known_topics
            and mark is not None
        ):
            existing_places.setdefault(mark, self._marked[1])
        commits = {}
        for each, place in existing_places.items():
            metadata = metadata_of(place.pull, ids.get(each.topic), known_topics if each == mark else (), place.commit)
            commits[each] = OffsetAndMetadata(place.commit, with_done(metadata, place, self._metadata_bytes))
        try:
            if not commits.keys() <= self.kafka.assignment():
                raise CommitFailedError("they are not assigned")
            if commits:
                await commit_once(self.kafka, commits, lambda: True)
        except _OTHERS as error:
            log.info(
                "consumer does not commit: its partitions moved to other members: %r", error, extra={"action": "commit"}
            )
            return ()
        except OffsetMetadataTooLargeError:
            if self._metadata_bytes:
                log.warning(
                    "brokers keep less than %d bytes of metadata per offset: after a crash more messages come again. "
                    "Set offset.metadata.max.bytes to that", self._metadata_bytes, extra={"action": "commit"},
                )  # fmt: skip
                self._metadata_bytes = 0
            return ()
        except (KafkaError, TimeoutError) as error:
            self._commits.record_failure(error)
            return ()
        self._commits.record_success()
        if mark in existing_places:
            self._marked = turn, existing_places[mark], known_topics
        return places.keys() & existing_places.keys()  # a deleted topic has no offsets

    def _known_topics(self) -> frozenset[str]:
        return frozenset(self.starts.known_topics.intersection(self._topics))

    async def store(self, offsets: Mapping[TopicPartition, int], turn: int) -> None:
        """See `Store`."""
        if self._file is not None:
            await asyncio.to_thread(self._file.save, offsets, self.starts.known_topics)
        else:
            await self.starts.commit(offsets, lambda: self.changes.turn == turn)

    async def let_go(self) -> None:
        """Give up all partitions, as if they were assigned to other members."""
        await self.changes.on_partitions_revoked(self.kafka.assignment())

    async def stop(self) -> None:
        """Leave the group."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        try:
            async with asyncio.timeout(_STOP_S):
                await self.kafka.stop()
        except (TimeoutError, KafkaError) as error:
            log.warning("consumer cannot leave its group: %r", error, extra={"action": "leave"})
            abandon(self.kafka)
        except asyncio.CancelledError:
            abandon(self.kafka)
            raise
        finally:
            if self._file is not None:
                self._file.unlock()

    # --- new topics ------------------------------------------------------------------------------------------------

    async def check_often(self) -> None:
        """Check for new partitions until cancelled. aiokafka itself checks only every `metadata_max_age_ms`, which is
        too late for a topic that was just created."""
        looks = 0

        async def turn() -> float:
            nonlocal looks
            missing = await self.check_partitions()
            for topic in sorted(self._missing - missing):
                log.info("topic %s of group %s exists now", topic, self._group, extra={"action": "subscribe"})
            for topic in sorted(missing - self._missing):
                log.warning("topic %s of group %s no longer exists", topic, self._group, extra={"action": "subscribe"})
            looks = looks + 1 if missing == self._missing else 0
            self._missing = missing
            return _LOOK_SOON_S[looks] if looks < len(_LOOK_SOON_S) else _LOOK_S

        pace = OutageOptions(first_s=_LOOK_SOON_S[0], longest_s=_LOOK_S)
        await Loop("look for partitions", turn, self._group, expected=_PASSING, delay_s=_LOOK_SOON_S[0], **pace).run()

    async def compare_often(self) -> None:
        """Identify the partitions' logs whenever they are in doubt. Until that succeeds, no position is stored."""

        async def turn() -> float:
            await self.changes.in_doubt.wait()
            return 0.0 if await self.compare() else _MOVING_S

        pace = OutageOptions(first_s=_AGAIN_S, longest_s=_AGAIN_S)
        await Loop("look at topics", turn, self._group, expected=_PASSING, **pace).run()

    async def compare(self) -> bool:
        """See `TopicIdentity.compare`."""
        async with self._comparing:
            if self._file is None:
                return await self.identity.compare()
            doubts = self.changes.doubts
            await self._assign_all({})
            return self.changes.confirm(doubts)

    async def check_partitions(self) -> frozenset[str]:
        """Check for new partitions. Returns the topics that are missing now."""
        if self._file is not None:
            async with self._comparing:
                return await self._assign_all({})
        await self.compare()
        async with self._saving:
            await self._commit({})
        if missing := self._unknown():
            await client_of(self.kafka).force_metadata_update()
            missing = self._unknown()
        return missing

    def _unknown(self) -> frozenset[str]:
        return frozenset(topic for topic in self._topics if self.kafka.partitions_for_topic(topic) is None)

    async def _assign_all(self, stored: Mapping[TopicPartition, int]) -> frozenset[str]:
        """When broadcasting: assign all existing partitions to this member. Returns the missing topics. Calls must not
        overlap."""
        assert self._file is not None
        partitions = await partitions_of(self._bootstrap, self._options, self._topics)
        ids = await topic_ids(client_of(self.kafka), self._topics)
        recreated = await asyncio.to_thread(self._file.recreated, ids)
        stored = {each: offset for each, offset in stored.items() if each.topic not in recreated}
        present = self.kafka.assignment()
        self.parking.park({each: RECREATED for each in present if each.topic in recreated})
        if additions := partitions - present:
            begun = self.starts.known_topics.union(each.topic for each in present)
            rest = additions - stored.keys()
            new = {each for each in rest if each.topic in begun or self.starts.is_new(each.topic)}
            starts = {each: stored[each] for each in additions & stored.keys()}
            starts |= await self.starts.firsts(new) if new else {}
            starts |= await self.starts.by_options(rest - new) if rest - new else {}
            self.starts.known_topics.update(each.topic for each in partitions)
            await self.store({each: starts[each] for each in rest}, 0)
            for topic in sorted({each.topic for each in rest}):
                some = [each for each in rest if each.topic == topic]
                where = "the first record" if some[0] in new else self._options.start
                log.info("consumer starts %s at %s", named(some), where, extra={"action": "begin"})
            parked = dict(self.parking.parked)
            self._assign(starts)
            await self.changes.on_partitions_assigned(additions)
            self.parking.park(parked)
        return frozenset(self._topics).difference(each.topic for each in partitions)

    def _assign(self, starts: Mapping[TopicPartition, int]) -> None:
        """Assign old and new partitions in one step, so that a concurrent pull finds a position for each."""
        places = dict(starts)
        if (subscription := subscription_of(self.kafka)) is not None:
            present = subscription.assignment
            places |= {each: present.state_value(each).position for each in present.tps}
        self.kafka.assign(sorted(places))
        for partition, offset in places.items():
            self.kafka.seek(partition, offset)
