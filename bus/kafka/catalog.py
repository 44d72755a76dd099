"""Which topics there are, as the brokers said it lately, and what they take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aiokafka import errors
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.protocol.admin import DescribeConfigsRequest

from duemq.bus.base import TopicInfo
from duemq.bus.kafka.wire import EARLIEST, LATEST, Wire
from duemq.model.errors import LogFailed

# What a record's own fields and its batch's head may take on top of a frame's bytes.
BATCH_OVERHEAD_BYTES = 512
_FRESH_S, _STALE_S = 5.0, 60.0
_DEFAULT_MAX_BYTES = 1_048_588


class Known(NamedTuple):
    """`max_bytes`: of a whole batch, as the topic's max.message.bytes has it. `checked`: when, on the steady clock."""

    partitions: int
    max_bytes: int
    checked: float

    @property
    def max_frame_bytes(self) -> int:
        return self.max_bytes - BATCH_OVERHEAD_BYTES


class Catalog:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._known: dict[str, Known] = {}
        self._renewal: asyncio.Task[None] | None = None

    def last(self, topic: str) -> Known | None:
        """The topic as it was when it was looked at last. If that was a while ago, it is looked at again meanwhile."""
        known = self._known.get(topic)
        if known is not None and time.monotonic() - known.checked > _FRESH_S and self._renewal is None:
            self._renewal = asyncio.create_task(self._renew(), name="kafka catalog")
        return known

    async def find(self, topics: Iterable[str]) -> dict[str, Known]:
        """Those of the topics that exist. Asks the brokers about those that were not seen lately. Raises LogFailed."""
        found = {topic: self.last(topic) for topic in topics}
        now = time.monotonic()
        stale = [topic for topic, known in found.items() if known is None or now - known.checked > _STALE_S]
        if stale:
            await self.look(stale)
            found.update((topic, self._known.get(topic)) for topic in stale)
        return {topic: known for topic, known in found.items() if known is not None}

    async def recall(self, topic: str) -> Known | None:
        """The topic as it was when it was looked at last; asks the brokers where it never was. Raises LogFailed."""
        return self.last(topic) or (await self.find([topic])).get(topic)

    async def infos(self, topics: Sequence[str]) -> list[TopicInfo]:
        """Those of the topics that exist, with the ends of their partitions. Raises LogFailed."""
        known = await self.find(topics)
        partitions = [(topic, each) for topic, found in known.items() for each in range(found.partitions)]
        starts, ends = await self._wire.offsets(partitions, EARLIEST), await self._wire.offsets(partitions, LATEST)
        infos = []
        for topic in topics:
            if topic in known:
                numbers = range(known[topic].partitions)
                start = tuple(starts[topic, each] for each in numbers)
                end = tuple(ends[topic, each] for each in numbers)
                infos.append(TopicInfo(topic, len(numbers), start, end, known[topic].max_frame_bytes))
        return infos

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])

    async def _renew(self) -> None:
        """Look at all topics again that are used, at most every few seconds."""
        try:
            await self.look(list(self._known))
        except LogFailed:
            await asyncio.sleep(_FRESH_S)
        finally:
            self._renewal = None

    async def look(self, topics: Iterable[str] | None = None) -> list[str]:
        """Ask the brokers, about all topics with None; the names of those that exist. Raises LogFailed."""
        wanted = None if topics is None else list(topics)
        exist: dict[str, int] = {}
        for code, topic, internal, partitions, *_ in await self._wire.metadata(wanted):
            error = errors.for_code(code)
            if error is errors.NoError or error is errors.LeaderNotAvailableError:
                if partitions and not (internal or topic.startswith("__")):
                    exist[topic] = len(partitions)
        for topic in list(self._known) if wanted is None else wanted:
            if topic not in exist:
                self._known.pop(topic, None)
        sizes = await self._max_bytes(exist)
        now = time.monotonic()
        self._known.update(
            (topic, Known(partitions, sizes.get(topic, _DEFAULT_MAX_BYTES), now)) for topic, partitions in exist.items()
        )
        return sorted(exist)

    def forget(self, topic: str) -> None:
        self._known.pop(topic, None)

    async def settings(self, topics: Iterable[str], names: list[str]) -> dict[str, dict[str, str]]:
        """The configuration of topics under these names. A topic we may not describe has none."""
        resources = [(ConfigResourceType.TOPIC.value, topic, names) for topic in topics]
        if not resources:
            return {}
        response = await self._wire.ask_any(DescribeConfigsRequest(resources))
        return {
            topic: {name: value for name, value, *_ in entries}
            for code, _, _, topic, entries in response.resources
            if not code
        }

    async def _max_bytes(self, topics: Iterable[str]) -> dict[str, int]:
        found = await self.settings(topics, ["max.message.bytes"])
        return {topic: int(settings["max.message.bytes"]) for topic, settings in found.items() if settings}
