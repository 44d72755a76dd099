"""Finds the record of a message in a topic, by the time of its delivery and the message's id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from duemq.bus.base import Bus
from duemq.bus.partitioner import partition_of
from duemq.client.consumer.retry.headers import ID
from duemq.cluster.shards.shard_reader import MessageState
from duemq.model.errors import Unavailable
from duemq.model.messages.record import Record, StoredRecord, unpack_record
from duemq.proxy.response.topic_reader import readable
from duemq.web.admission.admission import Share

_PIECE_RECORDS, _PIECE_BYTES = 500, 256 << 10  # read before other tasks run
_MAX_RECORDS, _MAX_BYTES = 50_000, 32 << 20  # read for one story
_MAX_LETTERS: Final = 1_000  # of a partition, when searching for a dead letter without a name
_MAX_PARTITIONS: Final = 64
_AFTER_MS, _BEFORE_MS = 60_000, 5_000  # a commit takes time, and the log's clock may be slow
_OWN_ID: Final = "duemq-id"


class PlacedRecord(NamedTuple):
    """A record and its place. `timestamp`: epoch ms."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    record: Record


class Budget:
    """What one story may still cost. `charge` is called with the cost of each part, to count it towards the caller's
    rate."""

    def __init__(self, share: Share, charge: Callable[[int], None]) -> None:
        self._share, self._charge = share, charge
        self._records, self._bytes = _MAX_RECORDS, _MAX_BYTES
        self.is_spent = False

    def look_up(self, count: int = 1) -> None:
        self._charge(count)

    async def read(self, bus: Bus, topic: str, partition: int, offset: int) -> list[StoredRecord]:
        """The next records; none once the budget is spent. Raises Unavailable if there is no memory for them."""
        if self._records <= 0 or self._bytes <= 0:
            self.is_spent = True
            return []
        self._charge(1)
        self._share.take(_PIECE_BYTES)
        try:
            stored = await bus.read(topic, partition, offset, _PIECE_RECORDS, _PIECE_BYTES)
        finally:
            self._share.give_back(_PIECE_BYTES)
        self._records -= len(stored)
        self._bytes -= sum(len(one.frame) for one in stored)
        return stored


class StoryRecords:
    """Reads the topics of one log. Methods raise Unavailable."""

    def __init__(self, bus: Bus, budget: Budget) -> None:
        self._bus, self._budget = bus, budget

    async def of(self, state: MessageState) -> PlacedRecord | None:
        """The record of a delivered message; None if it is no longer kept, or not found within the budget."""
        since = state.delivered_at or state.due
        for first, end in ((since, since + _AFTER_MS), (since - _BEFORE_MS, since)):
            if (record := await self._find(state.topic, state.key, _OWN_ID, state.id, first, end)) is not None:
                return record
        return None

    async def letter(self, topic: str, key: bytes | None, id_: str, since: int) -> PlacedRecord | None:
        """A message's dead letter, searched for among the first 1,000 records appended at this time (epoch ms) or
        later."""
        return await self._find(topic, key, ID, id_, since, None)

    async def _find(
        self, topic: str, key: bytes | None, header: str, id_: str, since: int, end: int | None
    ) -> PlacedRecord | None:
        info = await readable(self._bus, topic)
        if info is None:
            return None
        partitions = list(range(min(info.partitions, _MAX_PARTITIONS)))
        if key is not None:  # the key's partition first; the topic may have been given more partitions since
            first = partition_of(key, info.partitions)
            partitions = [first, *(number for number in partitions if number != first)]
        for partition in partitions:
            last = info.end_offsets[partition]
            record = await self._scan(topic, partition, last, header, id_.encode(), since, end)
            if record is not None:
                return record
        return None

    async def _scan(
        self, topic: str, partition: int, last: int, header: str, id_: bytes, since: int, end: int | None
    ) -> PlacedRecord | None:
        offset = await self._bus.first_since(topic, partition, max(since, 0))
        if end is None:
            last = min(last, offset + _MAX_LETTERS)
        while offset < last:
            stored = await self._budget.read(self._bus, topic, partition, offset)
            for one in stored:
                if end is not None and one.timestamp >= end:
                    return None
                if id_ in one.frame and (record := unpack_record(one.frame)).header(header) == id_:
                    return PlacedRecord(topic, partition, one.offset, one.timestamp, record)
            if not stored:
                if self._budget.is_spent or self._bus.reach(topic, partition) >= last:
                    return None
                raise Unavailable(f"partition {partition} of {topic} cannot be read now")
            offset = stored[-1].offset + 1
            await asyncio.sleep(0)
        return None
