"""The target topics a node knows, with their partitions."""

from __future__ import annotations

from collections.abc import Iterable

from duemq.bus.base import Bus


class Targets:
    """Looks topics up once and makes missing ones where that is allowed (`partitions` > 0)."""

    def __init__(self, bus: Bus, partitions: int) -> None:
        self.known: dict[str, int] = {}
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
