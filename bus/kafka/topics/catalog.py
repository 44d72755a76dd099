"""The topics that brokers recently reported, and what they accept."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from aiokafka import errors
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.protocol.admin import DescribeConfigsRequest

from duemq.background.loop import Loop
from duemq.bus.base import NO_LEADER, TOO_FEW_REPLICAS, TopicInfo, TopicState
from duemq.bus.kafka.requests.wire import EARLIEST, LATEST, Wire
from duemq.model.errors import LogFailed

# The overhead of a record's fields and of its batch's head, in addition to a frame's bytes.
BATCH_OVERHEAD_BYTES = 512
_FRESH_S, _STALE_S, _UNUSED_S = 5.0, 60.0, 3_600.0
_SOON_S, _LATER_S = 0.25, 1.0  # pauses while a topic is in trouble: at first, and later
# A follower that fetches a new topic before the leader knows the topic retries after a second
# (replica.fetch.backoff.ms), and every record waits for the followers.
_NEW_S = 2.0
_MAX_MISSING = 1_000  # a limit, because senders may send any name
_DEFAULT_MAX_BYTES = 1_048_588
_SETTINGS = ["max.message.bytes", "cleanup.policy", "min.insync.replicas"]


class Replicas(NamedTuple):
    """The replicas of a partition: the leader (-1: none), the brokers in sync, and the intended number of replicas."""

    leader: int
    in_sync: tuple[int, ...]
    copies: int


class TopicMetadata(NamedTuple):
    """`max_bytes`: the limit for a whole batch (the topic's max.message.bytes). `checked_at`: when the topic was
    checked.

    `trouble`: the partitions that cannot be written to, with the reasons. `new_until`: until when the topic counts as
    new. Both times are on the steady clock.
    """

    partitions: int
    max_bytes: int
    checked_at: float
    needs_key: bool = False
    min_in_sync: int = 1
    replicas: tuple[Replicas, ...] = ()
    trouble: Mapping[int, str] = {}
    new_until: float = 0.0

    def judge(self, down: Collection[int]) -> TopicMetadata:
        """The same metadata, with `trouble` updated for these silent brokers."""
        trouble: dict[int, str] = {}
        for number, (leader, in_sync, _) in enumerate(self.replicas):
            if leader < 0 or leader in down:
                trouble[number] = NO_LEADER
            elif len(in_sync) - len([broker for broker in in_sync if broker in down]) < self.min_in_sync:
                trouble[number] = TOO_FEW_REPLICAS
        return self if trouble == self.trouble else self._replace(trouble=trouble)

    @property
    def copies(self) -> int:
        """The smallest number of replicas of any partition."""
        return min(each.copies for each in self.replicas)

    @property
    def topic_state(self) -> TopicState:
        is_new = self.new_until > 0 and self.new_until > time.monotonic()
        return TopicState(self.partitions, self.max_frame_bytes, self.needs_key, self.trouble, is_new)

    @property
    def max_frame_bytes(self) -> int:
        return self.max_bytes - BATCH_OVERHEAD_BYTES


class Catalog:
    """Checks topics in use every few seconds, and several times a second while one is in trouble.

    `drop_topic` is called for each topic that is removed from the catalog, because it does not exist or was not used
    for an hour.
    """

    def __init__(self, wire: Wire, drop_topic: Callable[[str], None] = lambda topic: None) -> None:
        self._wire, self._drop_topic = wire, drop_topic
        self.topics: dict[str, TopicMetadata] = {}
        self.missing: dict[str, None] = {}  # topics that did not exist at their last check
        self._used: set[str] = set()  # topics used since the last check
        self._renewal: asyncio.Task[None] | None = None
        self._last_sweep_s = time.monotonic()  # when unused topics were forgotten
        self.denied: set[str] = set()  # topics of the last request that duemq's user may not describe
        wire.brokers_changed = self._brokers_changed

    def last(self, topic: str) -> TopicMetadata | None:
        """The topic as of its last check. If that check is old, another check starts in the background."""
        metadata = self.topics.get(topic)
        if metadata is not None:
            self._used.add(topic)
            if metadata.trouble or time.monotonic() - metadata.checked_at > _FRESH_S:
                self._renew_soon()
        return metadata

    def lately(self, topic: str) -> TopicMetadata | None:
        """Like `last`, but None if the last check is too old."""
        metadata = self.last(topic)
        return None if metadata is None or time.monotonic() - metadata.checked_at > _STALE_S else metadata

    def _renew_soon(self) -> None:
        if self._renewal is None:
            self._renewal = asyncio.create_task(self._renew(), name="kafka catalog")

    def _brokers_changed(self) -> None:
        """Check the topics again: a connection was lost or restored, so leaders have changed or soon will."""
        for topic, metadata in self.topics.items():
            self.topics[topic] = metadata.judge(self._wire.down)
        self._renew_soon()

    async def find(self, topics: Iterable[str]) -> dict[str, TopicMetadata]:
        """The given topics that exist. Asks the brokers about topics that were not checked recently. Raises
        LogFailed."""
        by_topic = {topic: self.last(topic) for topic in topics}
        now = time.monotonic()
        stale = [
            topic for topic, metadata in by_topic.items() if metadata is None or now - metadata.checked_at > _STALE_S
        ]
        if stale:
            await self.refresh(stale)
            by_topic.update((topic, self.topics.get(topic)) for topic in stale)
        return {topic: metadata for topic, metadata in by_topic.items() if metadata is not None}

    async def recall(self, topic: str) -> TopicMetadata | None:
        """The topic as of its last check; asks the brokers if it was never checked. Raises LogFailed."""
        return self.last(topic) or (await self.find([topic])).get(topic)

    async def infos(self, topics: Sequence[str]) -> list[TopicInfo]:
        """The given topics that exist, with the start and end offsets of their partitions. Raises LogFailed.

        A topic with a partition that has no leader is returned with its trouble, and without offsets.
        """
        metadata = await self.find(topics)
        led_topics = {topic for topic, about in metadata.items() if NO_LEADER not in about.trouble.values()}
        partitions = [(topic, each) for topic in led_topics for each in range(metadata[topic].partitions)]
        starts, ends = await self._wire.offsets(partitions, EARLIEST), await self._wire.offsets(partitions, LATEST)
        infos = []
        for topic in topics:
            if topic in led_topics:
                numbers = range(metadata[topic].partitions)
                start = tuple(starts[topic, each] for each in numbers)
                end = tuple(ends[topic, each] for each in numbers)
                infos.append(TopicInfo(topic, len(numbers), start, end))
            elif topic in metadata:
                infos.append(
                    TopicInfo(topic, metadata[topic].partitions, (), (), metadata[topic].topic_state.trouble_text)
                )
        return infos

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])

    async def _renew(self) -> None:
        """Check the recently used topics again and again, until none of them is in trouble."""
        pause_s = _SOON_S

        async def turn() -> float | None:
            nonlocal pause_s
            topics, self._used = self._used, set()
            try:
                await self.refresh(topics)
            except LogFailed:
                self._used |= topics
                raise
            again = {topic for topic in topics if (metadata := self.topics.get(topic)) and metadata.trouble}
            self._used |= again
            wait_s, pause_s = pause_s, min(pause_s * 2, _LATER_S)
            return wait_s if again else None

        try:
            # Topics that are used during this check are checked again once the check is a few seconds old.
            await Loop("kafka topics", turn, first_s=_SOON_S, longest_s=_LATER_S, level=logging.DEBUG).run()
        finally:
            self._renewal = None

    async def refresh(self, topics: Iterable[str] | None = None) -> list[str]:
        """Ask the brokers about these topics (None = all topics); return the names of those that exist. Raises
        LogFailed."""
        names = None if topics is None else list(topics)
        exist: dict[str, tuple[Replicas, ...]] = {}
        self.denied.difference_update(names or ())
        for code, topic, internal, partitions, *_ in await self._wire.metadata(names):
            error = errors.for_code(code)
            if error is errors.NoError or error is errors.LeaderNotAvailableError:
                if partitions and not (internal or topic.startswith("__")):
                    by_number = sorted(partitions, key=lambda partition: partition[1])
                    exist[topic] = tuple(
                        Replicas(leader, tuple(isr), len(copies)) for _, _, leader, copies, isr, *_ in by_number
                    )
            elif error is errors.TopicAuthorizationFailedError:
                self.denied.add(topic)
        for topic in list(self.topics) if names is None else names:
            if topic not in exist:
                self._forget(topic)
                self.missing[topic] = None
        while len(self.missing) > _MAX_MISSING:
            del self.missing[next(iter(self.missing))]
        self._forget_unused()
        settings = await self.settings(exist, _SETTINGS) if exist else {}
        now, down = time.monotonic(), self._wire.down
        for topic, replicas in exist.items():
            configuration = settings.get(topic, {})
            metadata = TopicMetadata(
                len(replicas), int(configuration.get("max.message.bytes", _DEFAULT_MAX_BYTES)), now,
                "compact" in configuration.get("cleanup.policy", ""),
                int(configuration.get("min.insync.replicas", 1)), replicas,
                new_until=self._new_until(topic, replicas, now),
            )  # fmt: skip
            self.topics[topic] = metadata.judge(down)
        return sorted(exist)

    def _new_until(self, topic: str, replicas: Sequence[Replicas], now: float) -> float:
        if topic in self.missing:
            del self.missing[topic]
            return now + _NEW_S if max(each.copies for each in replicas) > 1 else 0.0
        before = self.topics.get(topic)
        return before.new_until if before is not None else 0.0

    def forget(self, topic: str) -> None:
        """Make the next use of this topic ask the brokers."""
        self.topics.pop(topic, None)

    def _forget(self, topic: str) -> None:
        self.topics.pop(topic, None)
        self._wire.forget(topic)
        self._drop_topic(topic)

    def _forget_unused(self) -> None:
        """Drop the topics that are not in use. Topics in use were checked within the last few seconds."""
        now = time.monotonic()
        if now - self._last_sweep_s > _STALE_S:
            self._last_sweep_s = now
            for topic in [topic for topic, metadata in self.topics.items() if now - metadata.checked_at > _UNUSED_S]:
                self._forget(topic)

    async def settings(self, topics: Iterable[str], names: list[str]) -> dict[str, dict[str, str]]:
        """The settings of topics under these names; empty for a topic that duemq's user may not describe."""
        resources = [(ConfigResourceType.TOPIC.value, topic, names) for topic in topics]
        if not resources:
            return {}
        response = await self._wire.ask_any(DescribeConfigsRequest(resources))
        return {
            topic: {name: value for name, value, *_ in entries}
            for code, _, _, topic, entries in response.resources
            if not code
        }
