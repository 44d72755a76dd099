"""Reads a topic for consumers, in pages of records from all partitions."""

from __future__ import annotations

from collections.abc import Sequence

from duemq.bus.base import Bus, TopicInfo
from duemq.bus.topic_cursor import encode_cursor
from duemq.model.errors import Unavailable
from duemq.model.messages.record import StoredRecord

Page = list[tuple[int, list[StoredRecord]]]  # records by partition


class TopicReader:
    """One reader's position in one topic. `offsets`: the next offset to read in each partition.

    `behind`: whether the last read reached its limits, so that more records are waiting.
    """

    def __init__(self, bus: Bus, topic: str, offsets: Sequence[int]) -> None:
        self._bus, self._topic = bus, topic
        self.offsets = list(offsets)
        self.behind = False

    @property
    def cursor(self) -> str:
        return encode_cursor(self._topic, self.offsets)

    async def read(self, max_records: int, max_bytes: int) -> Page:
        """The records available now, by partition, at most `max_records`, and about `max_bytes`; advances the position.

        If more records are waiting, each partition gets an equal share of the page, and what other partitions leave of
        their shares.
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
    """The topic with the ends of its partitions; None if it does not exist. Raises Unavailable if they are unknown."""
    info = await bus.topic(topic)
    if info is not None and info.trouble:
        raise Unavailable(f"topic {topic} cannot be read now: {info.trouble}")
    return info
