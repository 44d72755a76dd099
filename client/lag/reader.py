"""Reads how far consumer groups are behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from aiokafka.structs import TopicPartition

from duemq.client.consumer.work.tags import ALL, TagFilter
from duemq.client.lag.brokers import DEAD, Brokers, ConsumerGroup, Topics
from duemq.client.lag.scan import Scan
from duemq.client.lag.values import (
    GroupLag,
    GroupState,
    OffsetAndTime,
    PartitionEnds,
    PartitionLag,
    by_topic,
    clamped,
    measured,
)
from duemq.model.errors import Rejected
from duemq.model.topics.topic_names import is_cursor_group

Places = Mapping[TopicPartition, OffsetAndTime]
_NOWHERE = OffsetAndTime(None, None)


def _now() -> int:
    return time.time_ns() // 1_000_000


class LagReader:
    """An async context manager that reads lag. It joins no group and commits no offset: reading has no side effects.

    `kafka`: more arguments for aiokafka's clients, as in `ConsumerOptions.kafka`. `max_offsets`: how many offsets per
    topic are read to count messages with tags. `clock`: returns epoch ms. Raises Rejected `bad_option`.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        kafka: Mapping[str, Any] | None = None,
        max_offsets: int = 10_000,
        clock: Callable[[], int] = _now,
    ) -> None:
        if max_offsets < 1:
            raise Rejected("bad_option", f"max_offsets is {max_offsets}; it must be 1 or more", "max_offsets")
        self._bootstrap, self._settings = bootstrap, dict(kafka or {})
        self._max_offsets, self._clock = max_offsets, clock
        self._brokers: Brokers | None = None

    async def start(self) -> None:
        """Connect, unless connected already. Raises BadConfig if the brokers refuse the connection, and Unavailable if
        none answers."""
        if self._brokers is not None:
            return
        brokers = Brokers(self._bootstrap, self._settings)
        await brokers.open()
        self._brokers = brokers

    async def stop(self) -> None:
        brokers, self._brokers = self._brokers, None
        if brokers is not None:
            await brokers.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def read(
        self,
        groups: Collection[str] | None = None,
        topics: Collection[str] | None = None,
        tags: str | None = None,
    ) -> list[GroupLag]:
        """Read the lag of groups, ordered by name. `groups`: None = all consumer groups, except the groups that store
        the cursors of consumers over HTTP. `topics`: None = all topics of these groups.

        `tags`, such as `paid || refunded`: also counts the messages that pass this filter; `*` counts all messages.
        Raises Rejected `unknown_group`, `unknown_topic` or `bad_tags`, and Unavailable if no broker answers in time.
        """
        brokers = self._brokers
        if brokers is None:
            raise RuntimeError("the reader is not started: use it as `async with LagReader(...) as reader`")
        filtered = TagFilter.parse(ALL if tags is None else tags)
        names = sorted(await brokers.groups() if groups is None else set(groups))
        if groups is None:
            names = [name for name in names if not is_cursor_group(name)]
        described = await brokers.describe(names)
        # The list of groups cannot show which are missing: a restarted broker omits groups that it has not loaded yet.
        if groups is not None and (missing := [name for name in names if described[name].state == DEAD]):
            raise Rejected("unknown_group", f"there is no group {', '.join(map(repr, missing))}", "groups")
        # The groups' positions are read before the partitions' ends: otherwise a commit in between could make a lag
        # negative.
        places = await brokers.commits(names)
        catalog = await self._topics(brokers, topics, described, places)
        places_by_group = {
            group: _group_places(described[group], places[group], catalog, topics, named=groups is not None)
            for group in names
        }
        ends = await brokers.ends(
            {where for parts in places_by_group.values() for where in parts if where in catalog.leaders}
        )
        scan = Scan(brokers, filtered, self._max_offsets)
        await scan.firsts(_scan_ranges(places_by_group, ends))
        now = self._clock()
        lags = []
        for group in names:
            parts = [
                _measure(where, place, catalog, ends, scan, now) for where, place in places_by_group[group].items()
            ]
            if tags is not None:
                parts = await _add_matches(parts, scan)
            if parts or groups is not None:
                about = described[group]
                lags.append(GroupLag(group, about.state, about.members, by_topic(group, parts)))
        return lags

    @staticmethod
    async def _topics(
        brokers: Brokers,
        topics: Collection[str] | None,
        described: Mapping[str, ConsumerGroup],
        places: Mapping[str, Places],
    ) -> Topics:
        if topics is None:
            committed = {where.topic for of_group in places.values() for where in of_group}
            return await brokers.topics(
                committed | {where.topic for one in described.values() for where in one.assigned}
            )
        catalog = await brokers.topics(set(topics))
        if missing := sorted(
            set(topics) - {where.topic for where in (*catalog.leaders, *catalog.others)} - catalog.hidden
        ):
            raise Rejected("unknown_topic", f"there is no topic {', '.join(map(repr, missing))}", "topics")
        return catalog


def _group_places(
    group: ConsumerGroup, places: Places, catalog: Topics, topics: Collection[str] | None, *, named: bool
) -> dict[TopicPartition, OffsetAndTime]:
    """A group's positions in all partitions of its topics, including partitions without a commit."""
    own = {where.topic for where in (*places, *group.assigned)}
    if topics is not None:
        own = set(topics) if named else own & set(topics)
    existing = {where for where in (*catalog.leaders, *catalog.others) if where.topic in own}
    committed = {where for where in places if where.topic in own}
    return {where: places.get(where, _NOWHERE) for where in sorted(existing | committed)}


def _scan_ranges(
    places_by_group: Mapping[str, Places], ends: Mapping[TopicPartition, PartitionEnds]
) -> Iterable[tuple[TopicPartition, int, int]]:
    for places in places_by_group.values():
        for where, place in places.items():
            if where in ends:
                for offset in set(clamped(place, ends[where])) - {None}:
                    assert offset is not None
                    yield where, offset, ends[where].max


def _measure(
    where: TopicPartition,
    place: OffsetAndTime,
    catalog: Topics,
    ends: Mapping[TopicPartition, PartitionEnds],
    scan: Scan,
    now: int,
) -> PartitionLag:
    if where not in ends or where in scan.unreadable:
        there = where in catalog.leaders or where in catalog.others or where.topic in catalog.hidden
        state = GroupState.UNREADABLE if there else GroupState.GONE
        start, last = ends.get(where, (None, None))
        return PartitionLag(where.topic, where.partition, state, start, last, place.commit, place.pull)
    low, pull = clamped(place, ends[where])
    oldest = None if low is None else scan.first(where, low)
    waiting = None if pull is None else scan.first(where, pull)
    return measured(where.topic, where.partition, place, ends[where], now, oldest, waiting)


async def _add_matches(parts: list[PartitionLag], scan: Scan) -> list[PartitionLag]:
    """The same partitions, with the number of messages in each that pass the filter. Messages are counted topic by
    topic."""
    spans: dict[str, dict[TopicPartition, tuple[int, int]]] = {}
    for one in parts:
        if one.lag is not None and one.start is not None and one.max is not None and one.commit is not None:
            low = min(max(one.commit, one.start), one.max)
            spans.setdefault(one.topic, {})[TopicPartition(one.topic, one.partition)] = (low, one.max)
    counts = {where: count for of_topic in spans.values() for where, count in (await scan.count(of_topic)).items()}
    for where in scan.unreadable:
        counts.pop(where, None)
    return [replace(one, matching=counts.get(TopicPartition(one.topic, one.partition))) for one in parts]
