"""duemq's own topics: they are created with the right settings, checked while in use, and recreated if no shard depends
on them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from aiokafka.errors import KafkaError

from duemq.background.loop import Loop
from duemq.bus.base import NO_LEADER, TopicInfo, TopicRefused, WriteRefused, log_that_fits
from duemq.bus.kafka.requests.topic_ids import topic_ids
from duemq.bus.kafka.requests.wire import Wire
from duemq.bus.kafka.topics.catalog import Catalog
from duemq.bus.kafka.topics.topics import TOO_FEW_BROKERS, TopicMaker
from duemq.model.errors import BadConfig, DuemqError, LogFailed, Unavailable
from duemq.model.messages.record import Partition

log = logging.getLogger(__name__)

UNLED_S = 5.0  # longer than the election of a new leader takes
_LOOK_S = 10.0
_SOON_S = 1.0  # the pause after the first fault; later pauses grow up to `_LOOK_S`


class OwnTopics:
    """`partitions`: the number of partitions, by topic. `misfits`: why topics are misconfigured, by topic, in
    sentences.

    `begin_again` is called with each topic that is not vital and was recreated or truncated.
    """

    def __init__(self, wire: Wire, catalog: Catalog, maker: TopicMaker, begin_again: Callable[[str], None]) -> None:
        self._wire, self._catalog, self._maker, self._begin_again = wire, catalog, maker, begin_again
        self.partitions: dict[str, int] = {}
        self.misfits: dict[str, str] = {}
        self.vital: set[str] = set()
        self._settings: dict[str, dict[str, str]] = {}  # the settings that topics must have
        self._ids: dict[str, str | None] = {}  # ids of topics that existed at a check; None: the brokers have no ids
        self._read_to: dict[Partition, int] = {}  # for partitions that seem to end before an offset already read
        self._unled_since: dict[Partition, float] = {}
        self._doubted, self._pause_s = False, _LOOK_S
        self._loop = Loop("kafka own topics", self._check)

    async def make(self, topic: str, partitions: int, settings: dict[str, str]) -> TopicInfo:
        """Create a vital topic if it is missing, and check it from now on.

        Raises TopicRefused if it is misconfigured, BadConfig if changing a setting can help, Unavailable if the brokers
        do not create it.
        """
        try:
            await self._maker.ensure(topic, partitions, settings)
        except WriteRefused as error:
            raise BadConfig(error.detail) if error.reason == TOO_FEW_BROKERS else Unavailable(error.detail) from error
        (info,) = await self._catalog.infos([topic])
        log_that_fits(info, partitions)
        misfit = await self._maker.misfit(topic, settings)
        if misfit is not None:
            raise TopicRefused(
                f"topic {topic!r} is not as duemq needs it: {misfit}. Alter the topic, or change duemq's settings for "
                "its own topics if they demand more than you need, and start again."
            )
        self.partitions[topic], self._settings[topic] = partitions, settings
        self.vital.add(topic)
        return info

    async def offer(self, topic: str, partitions: int, settings: dict[str, str]) -> TopicInfo:
        """The same for a topic that is not vital. Raises nothing: `misfits` reports faults. The result has no
        offsets."""
        self.partitions[topic], self._settings[topic] = partitions, settings
        await self._check_topic(topic)
        return TopicInfo(topic, partitions, (), (), self.misfits.get(topic, ""))

    def doubt(self, topic: str, partition: int, read_to: int | None = None) -> None:
        """Check a topic soon: this partition cannot be read or, with `read_to`, seems to end before that offset."""
        if topic in self.vital:
            return  # the regular check is enough: a vital topic is not recreated
        if read_to is not None:
            self._read_to[topic, partition] = read_to
        self._doubted = True
        self._loop.wake()

    def unled(self) -> dict[Partition, str]:
        """The partitions that have had no leader for some seconds, whether or not they are being read, each with a
        sentence."""
        since = time.monotonic() - UNLED_S
        return {
            where: f"partition {where[1]} of topic {where[0]!r} has no leader"
            for where, begun in self._unled_since.items()
            if begun < since and where in self._unled_now(where[0])
        }

    async def run(self) -> None:
        """Check the topics until cancelled. Each fault is logged once, and the checks continue."""
        await self._loop.run()

    async def _check(self) -> float:
        """Check all topics once. Returns the seconds until the next check: few while a topic changes or is in doubt."""
        await asyncio.sleep(_SOON_S)  # several partitions usually come into doubt together
        doubted, self._doubted = self._doubted, False
        before = dict(self.misfits)
        for topic in list(self.partitions):
            await self._check_topic(topic)
        is_news = doubted or self.misfits != before or bool(self._unled_since)
        self._pause_s = _SOON_S if is_news else min(self._pause_s * 2, _LOOK_S)
        return self._pause_s - _SOON_S

    async def _check_topic(self, topic: str) -> None:
        try:
            misfit = await self._misfit(topic)
        except (DuemqError, KafkaError) as error:
            if isinstance(error, LogFailed | KafkaError):
                log.debug("topic %s could not be looked at: %r", topic, error)
                return
            misfit = str(error)
        if misfit is None:
            if self.misfits.pop(topic, None):
                log.info("topic %s is as duemq needs it again", topic, extra={"action": "misfit"})
        elif self.misfits.get(topic) != misfit:
            self.misfits[topic] = misfit
            log.error("topic %s is not as duemq needs it: %s", topic, misfit, extra={"action": "misfit"})

    async def _misfit(self, topic: str) -> str | None:
        """The fault of a topic, in a sentence; None if it has none. A missing topic that is not vital is created."""
        vital, partitions = topic in self.vital, self.partitions[topic]
        is_missing = topic not in await self._catalog.refresh([topic])
        self._record_leaders(topic)
        if is_missing and topic in self._catalog.denied:
            return "duemq's user may not describe it"
        if is_missing and vital:
            return "it does not exist any more"
        if is_missing:
            await self._maker.ensure(topic, partitions, self._settings[topic])
        if not vital:
            await self._follow_incarnation(topic, was_missing=is_missing)
        metadata = self._catalog.last(topic)
        if metadata is not None and metadata.partitions != partitions:
            return f"it has {metadata.partitions} partitions and must have {partitions}: the others are never read"
        if metadata is not None and metadata.trouble:
            return metadata.topic_state.trouble_text
        return await self._maker.misfit(topic, self._settings[topic])

    def _unled_now(self, topic: str) -> set[Partition]:
        """The topic's partitions without a leader, as of the catalog's last check. While a topic is in trouble, that
        check is less than a second old."""
        metadata = self._catalog.last(topic)
        trouble = {} if metadata is None else metadata.trouble
        return {(topic, number) for number, reason in trouble.items() if reason == NO_LEADER}

    def _record_leaders(self, topic: str) -> None:
        unled = self._unled_now(topic)
        for where in [where for where in self._unled_since if where[0] == topic and where not in unled]:
            del self._unled_since[where]
        for where in unled:
            self._unled_since.setdefault(where, time.monotonic())

    async def _follow_incarnation(self, topic: str, *, was_missing: bool) -> None:
        """Detect whether a topic was recreated (by its id, if the brokers have ids) or truncated."""
        now = (await topic_ids(self._wire.client, [topic])).get(topic)
        is_known, before, self._ids[topic] = topic in self._ids, self._ids.get(topic), now
        is_another = is_known and (was_missing if before is None or now is None else before != now)
        for where in [where for where in self._read_to if where[0] == topic]:
            read_to = self._read_to.pop(where)
            is_another |= await self._wire.sure_end(where, committed=False) < read_to
        if is_another:
            self._begin_again(topic)
