"""Requests to the brokers, over one aiokafka client. Never joins a group, commits, or creates a topic."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from aiokafka import errors
from aiokafka.client import CoordinationType
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError
from aiokafka.helpers import create_ssl_context
from aiokafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.structs import TopicPartition

from duemq.bus.kafka.clients import new_client
from duemq.client.consumer.kafka.positions import own_metadata, pull_in
from duemq.client.lag.new_groups import ConsumerGroupDescribeRequest
from duemq.client.lag.values import OffsetAndTime, PartitionEnds
from duemq.model.errors import BadConfig, Unavailable

EARLIEST, LATEST = -2, -1
DEAD = "Dead"  # Kafka's state of a group that does not exist
_READ_COMMITTED = 1
_TIMEOUT_MS = 10_000
_PAUSE_S = 0.05
_AT_ONCE = 16  # concurrent requests about groups
_KINDS = ("consumer", "")  # "": only offsets, committed without members
_LOGIN_ERRORS = (
    errors.AuthenticationFailedError, errors.SaslAuthenticationFailed, errors.UnsupportedSaslMechanismError,
)  # fmt: skip
# Errors of one partition that leave the others readable.
_UNREADABLE = (
    errors.TopicAuthorizationFailedError, errors.LeaderNotAvailableError, errors.UnknownTopicOrPartitionError,
    errors.InvalidTopicError,
)  # fmt: skip

T = TypeVar("T")


class ConsumerGroup(NamedTuple):
    """A consumer group. `assigned`: its members' partitions."""

    state: str
    members: int
    assigned: frozenset[TopicPartition]


class Topics(NamedTuple):
    """The partitions of topics. `leaders`: partitions with a leader; `others`: without one; `hidden`: topics that we
    may not see or that are just being created."""

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
    """`settings`: arguments for aiokafka's clients, such as `security_protocol`. Methods raise Unavailable if no broker
    answers in time."""

    def __init__(self, bootstrap: str, settings: Mapping[str, Any]) -> None:
        self._bootstrap = bootstrap
        self._settings = {
            "bootstrap_servers": bootstrap, "client_id": "duemq-lag", "request_timeout_ms": _TIMEOUT_MS, **settings,
        }  # fmt: skip
        if self._settings.get("security_protocol", "").endswith("SSL"):
            self._settings.setdefault("ssl_context", create_ssl_context())
        self._timeout_s = self._settings["request_timeout_ms"] / 1000
        self._client: Any = None
        self._leaders: dict[TopicPartition, int] = {}

    async def open(self) -> None:
        """Connect. Raises BadConfig if the brokers refuse us or a setting is invalid, Unavailable if they do not
        answer."""
        try:
            self._client = new_client(**self._settings)
        except (TypeError, ValueError) as error:
            raise BadConfig(f"the settings of the Kafka client: {error}") from error
        try:
            await asyncio.wait_for(self._client.bootstrap(), self._timeout_s * 2)
        except (KafkaError, OSError, TimeoutError) as error:
            await self.close()
            await self._explain(error)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(client.close(), self._timeout_s)

    # --- groups ---------------------------------------------------------------------------------------------------

    async def groups(self) -> set[str]:
        """The visible consumer groups of all brokers."""

        async def ask() -> set[str]:
            names: set[str] = set()
            for broker in self._client.cluster.brokers():
                response = await self._client.send(broker.nodeId, ListGroupsRequest())
                _raise(response.error_code, "listing the groups")
                names |= {group for group, kind in response.groups if kind in _KINDS}
            return names

        return await self._retry(ask)

    async def describe(self, groups: Iterable[str]) -> dict[str, ConsumerGroup]:
        # One group per request: since version 3 an answer about several has a field that aiokafka misreads.
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
        """Committed position of each group by partition."""
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
        node = await self._client.coordinator_lookup(CoordinationType.GROUP, group)
        return await self._client.send(node, request)

    # --- partitions -----------------------------------------------------------------------------------------------

    async def topics(self, names: Collection[str]) -> Topics:
        """The partitions of the topics that exist."""
        return await self._retry(lambda: self._topics(names)) if names else Topics({}, frozenset(), frozenset())

    async def _topics(self, names: Collection[str]) -> Topics:
        node = self._client.get_random_node()
        if node is None:
            raise errors.NodeNotReadyError("no broker is known")
        response = await self._client.send(node, MetadataRequest(sorted(names)))
        leaders, others, hidden = {}, set(), set()
        for code, topic, _, partitions in response.topics:
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
        """The ends of the partitions that can be read at present."""
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
            request = OffsetRequest(-1, _READ_COMMITTED, _group_by_topic({where: (at,) for where in led}))
            for topic, parts in (await self._client.send(node, request)).topics:
                for partition, code, _, offset, *_ in parts:
                    if not code:
                        offsets[TopicPartition(topic, partition)] = offset
                    elif errors.for_code(code) not in _UNREADABLE:
                        _raise(code, f"partition {partition} of topic {topic!r}")
        return offsets

    async def fetch(self, offsets: Mapping[TopicPartition, int], max_bytes: int) -> dict[TopicPartition, FetchedValues]:
        """Batches from these offsets on, only committed records. A broker returns one batch of any size for the first
        partition, and for the others what fits into `max_bytes`, possibly nothing."""
        return await self._retry(lambda: self._fetch(offsets, max_bytes))

    async def _fetch(
        self, offsets: Mapping[TopicPartition, int], max_bytes: int
    ) -> dict[TopicPartition, FetchedValues]:
        results = {}
        for node, led in (await self._by_leader(offsets)).items():
            topics = _group_by_topic({where: (offsets[where], max_bytes) for where in led})
            request = FetchRequest(0, 0, max_bytes * len(led), _READ_COMMITTED, topics)
            for topic, parts in (await self._client.send(node, request)).topics:
                for partition, code, _, _, start, aborted, *_, message_set in parts:
                    error = errors.for_code(code) if code else None
                    if error is not None and error.retriable and error is not errors.OffsetOutOfRangeError:
                        _raise(code, f"partition {partition} of topic {topic!r}")
                    results[TopicPartition(topic, partition)] = FetchedValues(
                        error, start, aborted or [], message_set or b""
                    )
        return results

    async def _by_leader(self, partitions: Collection[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """The partitions that have a leader, by leader."""
        if missing := {where.topic for where in partitions if where not in self._leaders}:
            await self._topics(missing)
        by_leader: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for where in partitions:
            if (leader := self._leaders.get(where)) is not None:
                by_leader[leader].append(where)
        return by_leader

    # --- errors ---------------------------------------------------------------------------------------------------

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of `call`, retried while a leader or a coordinator moves."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return await call()
            except (KafkaError, OSError) as error:
                self._leaders.clear()
                retriable = not isinstance(error, KafkaError) or error.retriable
                if not retriable or time.monotonic() > deadline:
                    raise Unavailable(f"Kafka at {self._bootstrap}: {error or type(error).__name__}") from error
                if isinstance(error, errors.NodeNotReadyError | errors.KafkaConnectionError | OSError):
                    await asyncio.wait([self._client.force_metadata_update()], timeout=self._timeout_s)
                await asyncio.sleep(_PAUSE_S)

    async def _explain(self, error: BaseException) -> None:
        """aiokafka reports only that it could not start. Ask the first broker again to find the reason."""
        host, port, _ = collect_hosts(self._settings["bootstrap_servers"])[0]
        settings = {name: value for name, value in self._settings.items() if name in _OF_A_CONNECTION}
        protocol = self._settings.get("security_protocol", "PLAINTEXT")
        try:
            connection = await asyncio.wait_for(create_conn(host, port, **settings), self._timeout_s)
        except _LOGIN_ERRORS as cause:
            raise BadConfig(f"{host}:{port} refused kafka.user and kafka.password: {cause}") from cause
        except ssl.SSLError as cause:
            raise BadConfig(f"{host}:{port} and duemq do not agree on TLS: {cause}. Check kafka.ca.") from cause
        except (KafkaError, OSError, EOFError, TimeoutError) as cause:
            raise Unavailable(
                f"no Kafka broker answers at {self._bootstrap} over {protocol} ({type(cause).__name__}: {cause})"
            ) from cause
        connection.close()
        raise Unavailable(f"no Kafka broker answered at {self._bootstrap}: {error}") from error


_OF_A_CONNECTION = frozenset((
    "client_id", "request_timeout_ms", "security_protocol", "ssl_context", "sasl_mechanism", "sasl_plain_username",
    "sasl_plain_password", "sasl_kerberos_service_name", "sasl_kerberos_domain_name", "sasl_oauth_token_provider",
))  # fmt: skip


def _raise(code: int, what: str) -> None:
    if code:
        raise errors.for_code(code)(what)


def _group_by_topic(items: Mapping[TopicPartition, tuple[int, ...]]) -> list[tuple[str, list[tuple[int, ...]]]]:
    """Items by topic, as Kafka's requests need them, in the given order."""
    by_topic: dict[str, list[tuple[int, ...]]] = {}
    for (topic, partition), item in items.items():
        by_topic.setdefault(topic, []).append((partition, *item))
    return list(by_topic.items())
