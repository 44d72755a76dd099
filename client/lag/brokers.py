"""Requests to the brokers, over one aiokafka client. They never join a group, commit, or create a topic."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from aiokafka import errors
from aiokafka.client import CoordinationType
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError
from aiokafka.helpers import create_ssl_context
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.structs import TopicPartition

from duemq.bus.kafka.requests.group_requests import ConsumerGroupDescribeRequest
from duemq.bus.kafka.requests.wire import EARLIEST, LATEST, Wire, group_by_topic
from duemq.client.consumer.kafka.positions import own_metadata, pull_in
from duemq.client.lag.values import OffsetAndTime, PartitionEnds

DEAD = "Dead"  # the state that Kafka reports for a group that does not exist
_READ_COMMITTED = 1
_TIMEOUT_MS = 10_000
_AT_ONCE = 16  # concurrent requests about groups
_KINDS = ("consumer", "")  # "": a group that has only offsets, which were committed without members
# Errors for one partition that leave the others readable.
_UNREADABLE = (
    errors.TopicAuthorizationFailedError, errors.LeaderNotAvailableError, errors.UnknownTopicOrPartitionError,
    errors.InvalidTopicError,
)  # fmt: skip

T = TypeVar("T")


class ConsumerGroup(NamedTuple):
    """A consumer group. `assigned`: the partitions that are assigned to its members."""

    state: str
    members: int
    assigned: frozenset[TopicPartition]


class Topics(NamedTuple):
    """The partitions of topics. `leaders`: the leader of each partition that has one; `others`: partitions without a
    leader; `hidden`: topics that we may not see or that are still being created."""

    leaders: dict[TopicPartition, int]
    others: frozenset[TopicPartition]
    hidden: frozenset[str]


class FetchedValues(NamedTuple):
    """The answer for one partition. `error` is None, or the class of the error."""

    error: Any
    start: int
    aborted: list[tuple[int, int]]
    message_set: bytes


class Brokers:
    """A connection to the brokers. `settings`: arguments for aiokafka's clients, such as `security_protocol`. Methods
    raise Unavailable if no broker answers in time."""

    def __init__(self, bootstrap: str, settings: Mapping[str, Any]) -> None:
        settings = {
            "bootstrap_servers": bootstrap, "client_id": "duemq-lag", "request_timeout_ms": _TIMEOUT_MS, **settings,
        }  # fmt: skip
        if settings.get("security_protocol", "").endswith("SSL"):
            settings.setdefault("ssl_context", create_ssl_context())
        self._wire = Wire(settings)
        self._leaders: dict[TopicPartition, int] = {}

    async def open(self) -> None:
        """Connect. Raises BadConfig if the brokers refuse the connection or a setting is invalid, and Unavailable if
        they do not answer."""
        await self._wire.open()

    async def close(self) -> None:
        with suppress(TimeoutError):
            await self._wire.close()

    # --- groups ---------------------------------------------------------------------------------------------------

    async def groups(self) -> set[str]:
        """All consumer groups, on any broker, that this user may see."""
        return {group for group, kind in await self._wire.groups() if kind in _KINDS}

    async def describe(self, groups: Iterable[str]) -> dict[str, ConsumerGroup]:
        # One group per request: since version 3 of this API, aiokafka misreads a field in answers about several groups.
        return await self._of_groups(groups, self._describe)

    async def _describe(self, group: str) -> ConsumerGroup:
        response = await self._of_coordinator(group, DescribeGroupsRequest([group]))
        code, _, state, kind, _, members = response.groups[0][:6]
        _raise(code, f"group {group!r}")
        if state == DEAD:
            return await self._describe_new(group)
        assigned: set[TopicPartition] = set()
        for *_, assignment in members:
            if kind == "consumer" and assignment:
                assigned.update(ConsumerProtocolMemberAssignment.decode(assignment).partitions())
        return ConsumerGroup(state, len(members), frozenset(assigned))

    async def _describe_new(self, group: str) -> ConsumerGroup:
        try:
            response = await self._of_coordinator(group, ConsumerGroupDescribeRequest(group))
        except errors.IncompatibleBrokerVersion:
            return ConsumerGroup(DEAD, 0, frozenset())
        code, _, _, state, _, _, _, members = response.groups[0][:8]
        if errors.for_code(code) is errors.GroupIdNotFound:
            return ConsumerGroup(DEAD, 0, frozenset())  # it was removed after the listing
        _raise(code, f"group {group!r}")
        assigned = {
            TopicPartition(topic, partition)
            for member in members
            for _, _, topic, partitions, _ in member[8][0]
            for partition in partitions
        }
        return ConsumerGroup(state, len(members), frozenset(assigned))

    async def commits(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, OffsetAndTime]]:
        """The committed positions of each group, by partition."""
        return await self._of_groups(groups, self._commits)

    async def _commits(self, group: str) -> dict[TopicPartition, OffsetAndTime]:
        response = await self._of_coordinator(group, OffsetFetchRequest(group, None))
        _raise(response.error_code, f"the offsets of group {group!r}")
        commits = {}
        for topic, partitions in response.topics:
            for partition, offset, metadata, code in partitions:
                _raise(code, f"the offset of group {group!r} in partition {partition} of topic {topic!r}")
                if offset >= 0:
                    commits[TopicPartition(topic, partition)] = OffsetAndTime(
                        offset, pull_in(own_metadata(offset, metadata))
                    )
        return commits

    async def _of_groups(self, groups: Iterable[str], ask: Callable[[str], Awaitable[T]]) -> dict[str, T]:
        free = asyncio.Semaphore(_AT_ONCE)

        async def one(group: str) -> T:
            async with free:
                return await self._retry(lambda: ask(group))

        names = list(groups)
        return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))

    async def _of_coordinator(self, group: str, request: Any) -> Any:
        return await self._wire.ask_coordinator(CoordinationType.GROUP, group, request)

    # --- partitions -----------------------------------------------------------------------------------------------

    async def topics(self, names: Collection[str]) -> Topics:
        """The partitions of those topics that exist."""
        return await self._retry(lambda: self._topics(names)) if names else Topics({}, frozenset(), frozenset())

    async def _topics(self, names: Collection[str]) -> Topics:
        leaders, others, hidden = {}, set(), set()
        for code, topic, _, partitions in await self._wire.metadata(sorted(names)):
            error = errors.for_code(code)
            if code and error not in _UNREADABLE:
                _raise(code, f"topic {topic!r}")
            if error in (errors.TopicAuthorizationFailedError, errors.LeaderNotAvailableError):
                hidden.add(topic)
            for _, partition, leader, *_ in partitions:
                if leader < 0:
                    others.add(TopicPartition(topic, partition))
                else:
                    leaders[TopicPartition(topic, partition)] = leader
        self._leaders |= leaders
        return Topics(leaders, frozenset(others), frozenset(hidden))

    async def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionEnds]:
        """The first and the end offset of each partition that can be read at present."""
        if not partitions:
            return {}
        starts = await self._retry(lambda: self._offsets(partitions, EARLIEST))
        last = await self._retry(lambda: self._offsets(partitions, LATEST))
        return {
            where: PartitionEnds(starts[where], last[where])
            for where in partitions
            if where in starts and where in last
        }

    async def _offsets(self, partitions: Collection[TopicPartition], at: int) -> dict[TopicPartition, int]:
        offsets = {}
        for node, led in (await self._by_leader(partitions)).items():
            request = OffsetRequest(
                -1, _READ_COMMITTED, group_by_topic((where, (where.partition, at)) for where in led)
            )
            for topic, parts in (await self._wire.ask(node, request)).topics:
                for partition, code, _, offset, *_ in parts:
                    if not code:
                        offsets[TopicPartition(topic, partition)] = offset
                    elif errors.for_code(code) not in _UNREADABLE:
                        _raise(code, f"partition {partition} of topic {topic!r}")
        return offsets

    async def fetch(self, offsets: Mapping[TopicPartition, int], max_bytes: int) -> dict[TopicPartition, FetchedValues]:
        """Fetch batches from these offsets on, with committed records only. A broker returns at least one batch, of any
        size, for the first partition; for each other one, only batches that fit into `max_bytes`, possibly none."""
        return await self._retry(lambda: self._fetch(offsets, max_bytes))

    async def _fetch(
        self, offsets: Mapping[TopicPartition, int], max_bytes: int
    ) -> dict[TopicPartition, FetchedValues]:
        results = {}
        for node, led in (await self._by_leader(offsets)).items():
            topics = group_by_topic((where, (where.partition, offsets[where], max_bytes)) for where in led)
            request = FetchRequest(0, 0, max_bytes * len(led), _READ_COMMITTED, topics)
            for topic, parts in (await self._wire.ask(node, request)).topics:
                for partition, code, _, _, start, aborted, *_, message_set in parts:
                    error = errors.for_code(code) if code else None
                    if error is not None and error.retriable and error is not errors.OffsetOutOfRangeError:
                        _raise(code, f"partition {partition} of topic {topic!r}")
                    results[TopicPartition(topic, partition)] = FetchedValues(
                        error, start, aborted or [], message_set or b""
                    )
        return results

    async def _by_leader(self, partitions: Collection[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Those partitions that have a leader, grouped by leader."""
        if missing := {where.topic for where in partitions if where not in self._leaders}:
            await self._topics(missing)
        by_leader: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for where in partitions:
            if (leader := self._leaders.get(where)) is not None:
                by_leader[leader].append(where)
        return by_leader

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of `call`, which is retried while a leader or a coordinator moves to another broker."""

        async def attempt() -> T:
            try:
                return await call()
            except (KafkaError, OSError):
                self._leaders.clear()
                raise

        return await self._wire.retry(attempt)


def _raise(code: int, what: str) -> None:
    if code:
        raise errors.for_code(code)(what)
