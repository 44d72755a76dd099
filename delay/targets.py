"""The target topics a node knows, with their partitions and limits, and those that refuse just now."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from duemq.bus.base import Bus
from duemq.delay.topics import INTERNAL
from duemq.model.errors import LogFailed

log = logging.getLogger(__name__)

UNKNOWN_TOPIC, TOO_LARGE = "unknown_topic", "too_large"


class Refusal(NamedTuple):
    """Why a topic takes nothing, until when (ms) it is not asked again, and how often in a row it refused."""

    reason: str
    until: int
    times: int


class Targets:
    """Looks topics up once and makes missing ones where that is allowed (`partitions` > 0)."""

    def __init__(self, bus: Bus, partitions: int) -> None:
        self.known: dict[str, int] = {}
        self.max_bytes: dict[str, int] = {}  # the largest frame, of topics that have such a limit
        self._refusals: dict[str, Refusal] = {}
        self._bus, self._partitions = bus, partitions

    async def resolve(self, topics: Iterable[str]) -> None:
        """Look up or make topics; afterwards those that exist are in `known`."""
        for topic in topics:
            if topic in self.known:
                continue
            info = await self._bus.topic(topic)
            if info is None and self._partitions:
                info = await self._bus.create_topic(topic, self._partitions)
            if info is not None:
                self.known[topic] = info.partitions
                if info.max_frame_bytes is not None:
                    self.max_bytes[topic] = info.max_frame_bytes

    async def learn(self) -> None:
        """Look up all topics there are, so that the first message to each need not wait for it."""
        try:
            await self.resolve([topic.name for topic in await self._bus.topics() if topic.name not in INTERNAL])
        except LogFailed as error:  # one topic of a shared log that is in trouble is no reason not to start
            log.warning("targets are looked up as they are needed: %s", error, extra={"action": "targets"})

    def refuse(self, topic: str, reason: str, now: int, waits_ms: Sequence[int]) -> Refusal:
        """Note that the topic took nothing. It is asked again after a wait that grows with each refusal in a row."""
        before = self._refusals.get(topic)
        times = 1 if before is None or now > before.until + waits_ms[-1] else before.times + 1
        refusal = self._refusals[topic] = Refusal(reason, now + waits_ms[min(times, len(waits_ms)) - 1], times)
        self.known.pop(topic, None)  # it may come back with other partitions and limits
        self.max_bytes.pop(topic, None)
        return refusal

    def refused(self, now: int) -> dict[str, str]:
        """Topics that are not to be asked now, with the reasons."""
        return {topic: refusal.reason for topic, refusal in self._refusals.items() if refusal.until > now}
