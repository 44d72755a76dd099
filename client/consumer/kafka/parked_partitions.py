"""Partitions without a position to fetch from: their offset is unknown or out of range.

Finding a position takes several requests to brokers, which may be unreachable. In a new group, one member finds the
positions for a whole topic, and the other members wait for it. Until the position is known, the partition is parked,
that is, paused without a position. All other partitions continue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import IllegalStateError, KafkaError
from aiokafka.structs import TopicPartition

from duemq.background.loop import Loop
from duemq.client.consumer.kafka.rebalance import Rebalance
from duemq.client.consumer.kafka.starts import Starts, named

log = logging.getLogger(__name__)

RECREATED: Final = -1
"""Used as an offset; means that the partition's log is not the one that the group's offsets belong to."""

_OTHERS_S = 0.5  # between checks while another member starts a topic
_NOT_HERE = object()


Store = Callable[[Mapping[TopicPartition, int], int], Awaitable[None]]
"""Make these offsets durable, unless partitions were assigned or revoked since the given turn. Raises KafkaError."""


class ParkedPartitions:
    """The parked partitions of one aiokafka consumer."""

    def __init__(self, kafka: AIOKafkaConsumer, starts: Starts, changes: Rebalance, store: Store) -> None:
        self._kafka, self._starts, self._changes, self._store = kafka, starts, changes, store
        self._parked: dict[TopicPartition, int | None] = {}
        self._turn = 0
        self._some = asyncio.Event()
        self.times: Counter[TopicPartition] = Counter()
        """How often each partition was parked. Records pulled before a partition was parked must be dropped."""

    @property
    def parked(self) -> dict[TopicPartition, int | None]:
        """Partitions that are parked now, each with its out-of-range offset, or `RECREATED`; None: it has no offset."""
        return self._parked if self._turn == self._changes.turn else {}

    @property
    def unsure(self) -> Collection[TopicPartition]:
        """Partitions whose positions must not be stored: their records may come from a log that no longer exists.
        During a rebalance, these are the partitions that were parked before it."""
        return self._parked.keys() if self._changes.turn - self._turn <= self._changes.moving else ()

    def park(self, partitions: Mapping[TopicPartition, int | None]) -> None:
        """Park partitions; the argument has the form of `parked`. Does nothing during a rebalance: after it, fetching
        fails again for the partitions without a position, and they are parked then."""
        if self._changes.moving:
            return
        if self._turn != self._changes.turn:
            self._parked, self._turn = {}, self._changes.turn
        for partition, offset in partitions.items():
            with suppress(IllegalStateError):  # the partition has moved to another member
                if offset is None:
                    self._kafka.seek(partition, 0)  # without a position, aiokafka would request one again and again
                self._kafka.pause(partition)
                self._parked[partition] = offset
                self.times[partition] += 1
                self._some.set()

    async def run(self) -> None:
        """Find positions until cancelled."""
        await Loop("start of partitions", self._place_some, expected=(KafkaError, TimeoutError), longest_s=2.0).run()

    async def _place_some(self) -> float:
        if not self.parked:
            self._some.clear()
            await self._some.wait()
        turn, parked = self._changes.turn, dict(self.parked)
        searches = [self._find_starts([each for each, offset in parked.items() if offset is None], turn)]
        if not self._changes.in_doubt.is_set():  # otherwise the commit could be for the wrong topic
            lost = [(each, offset) for each, offset in parked.items() if offset is not None]
            searches += [self._restart_lost(each, offset, turn) for each, offset in lost]
        ends = await asyncio.gather(*searches, return_exceptions=True)
        for error in ends:
            if error is not None:
                raise error
        return _OTHERS_S if self.parked else 0.0

    async def _find_starts(self, partitions: Iterable[TopicPartition], turn: int) -> None:
        by_topic: defaultdict[str, list[TopicPartition]] = defaultdict(list)
        for partition in partitions:
            by_topic[partition.topic].append(partition)
        problems: list[KafkaError | TimeoutError] = []
        for topic, some in by_topic.items():
            try:
                self._place(await self._starts.of_group(topic, some, lambda: self._changes.turn == turn), turn)
            except (KafkaError, TimeoutError) as error:
                problems.append(error)
        if problems:
            raise problems[0]

    async def _restart_lost(self, partition: TopicPartition, offset: int, turn: int) -> None:
        """Restart where retention removed the next record, or where the topic was recreated."""
        first = (await self._starts.firsts([partition]))[partition]
        last = (await self._starts.lasts([partition]))[partition]
        if first <= offset <= last:
            first = offset  # it was out of range only because a replica lagged for a moment
        elif offset != RECREATED and offset < first:
            log.error(
                "consumer of %s was at offset %d, and the log now starts at %d: records in between are lost",
                named([partition]), offset, first, extra={"action": "out of range"},
            )  # fmt: skip
        else:
            how = "is another one now" if offset == RECREATED else f"ends at {last}, before offset {offset}"
            log.error(
                "topic %s was recreated or truncated: the log of %s %s. It is read from its first record, at %d",
                partition.topic, named([partition]), how, first, extra={"action": "made anew"},
            )  # fmt: skip
            await self._changes.forget([partition])
            await self._store({partition: first}, turn)
        self._place({partition: first}, turn)

    def _place(self, offsets: Mapping[TopicPartition, int], turn: int) -> None:
        """Resume partitions from these offsets, unless partitions were assigned or revoked since `turn`."""
        for partition, offset in offsets.items():
            if turn == self._changes.turn and self.parked.pop(partition, _NOT_HERE) is not _NOT_HERE:
                with suppress(IllegalStateError):
                    self._kafka.seek(partition, offset)
                    self._kafka.resume(partition)
