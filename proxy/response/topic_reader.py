"""Reading a topic for consumers: pages across partitions."""

from __future__ import annotations

from collections.abc import Sequence

from duemq.bus.base import Bus, TopicInfo
from duemq.bus.topic_cursor import encode_cursor
from duemq.model.errors import Unavailable
from duemq.model.messages.record import StoredRecord

Page = list[tuple[int, list[StoredRecord]]]  # what was read, by partition


class TopicReader:
    """One reader at its place in one topic. `offsets` are the next ones to be read, per partition.

    `behind`: the last read was bounded by what it was asked for, so that more is waiting.
    """

    def __init__(self, bus: Bus, topic: str, offsets: Sequence[int]) -> None:
        self._bus, self._topic = bus, topic
        self.offsets = list(offsets)
        self.behind = False

    @property
    def cursor(self) -> str:
        return encode_cursor(self._topic, self.offsets)

    async def read(self, max_records: int, max_bytes: int) -> Page:
        """What there is now, by partition, and the place moves behind it: at most `max_records`, and about `max_bytes`.

        Where more is waiting than that, each partition gets an equal share, and what the short ones leave over.
        """
        info = await readable(self._bus, self._topic)
        if info is None:
            return []
        self.offsets += [0] * (info.partitions - len(self.offsets))
        waiting = sorted(
            (end - self.offsets[partition], partition)
            for partition, end in enumerate(info.end_offsets)
            if end > self.offsets[partition]
        )
        page: Page = []
        left, bytes_left = max_records, max_bytes
        self.behind = False
        for at, (_, partition) in enumerate(waiting):
            if left <= 0 or bytes_left <= 0:
                self.behind = True
                break
            shares = len(waiting) - at
            most, most_bytes = -(-left // shares), bytes_left // shares
            stored = await self._bus.read(self._topic, partition, self.offsets[partition], most, most_bytes)
            if stored:
                self.offsets[partition] = stored[-1].offset + 1
                page.append((partition, stored))
                size = sum(len(one.frame) for one in stored)
                left, bytes_left = left - len(stored), bytes_left - size
                self.behind = self.behind or len(stored) == most or size > most_bytes // 2
        return page


def page_bytes(page: Page) -> int:
    return sum(len(one.frame) for _, stored in page for one in stored)


async def readable(bus: Bus, topic: str) -> TopicInfo | None:
    """The topic with the ends of its partitions, None if there is none. Raises Unavailable where they are not known."""
    info = await bus.topic(topic)
    if info is not None and info.trouble:
        raise Unavailable(f"topic {topic} cannot be read just now: {info.trouble}")
    return info
