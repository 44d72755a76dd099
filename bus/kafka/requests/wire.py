"""Sends requests to the brokers, through one aiokafka client."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from aiokafka import errors
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError
from aiokafka.protocol.admin import DeleteRecordsRequest, DescribeConfigsRequest, ListGroupsRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.structs import TopicPartition

from duemq.background.loop import Loop
from duemq.bus.kafka.aiokafka_internals import forget_topic, on_connection_closed
from duemq.bus.kafka.clients import new_client
from duemq.model.errors import BadConfig, LogFailed, Unavailable
from duemq.model.messages.record import Partition

EARLIEST, LATEST = -2, -1
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_RETRY_S = 0.05
_PING_S, _SILENT_S = 1.0, 3.0
_REFRESH_S = 1.0
_ASK = ConnectionGroup.DEFAULT

log = logging.getLogger(__name__)

T = TypeVar("T")


class FetchedRecords(NamedTuple):
    """A broker's answer for one partition; `error` is None, or an exception class."""

    error: Any  # an exception class
    stable: int
    start: int
    aborted: list[tuple[int, int]]
    message_set: bytes


class Wire:
    """Finds the leaders of partitions, sends requests, and checks whether the brokers answer.

    `settings`: arguments for aiokafka's clients, with `bootstrap_servers` and `request_timeout_ms`.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        servers = settings["bootstrap_servers"]
        self._bootstrap = servers if isinstance(servers, str) else ",".join(servers)
        self._timeout_s: float = settings["request_timeout_ms"] / 1000
        self.client: Any = None
        self._last_answer_s = time.monotonic()
        self._closed = False
        self.down: set[int] = set()  # brokers that do not answer
        self.brokers_changed: Callable[[], None] = lambda: None
        self._checks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Raises BadConfig if the brokers refuse us or a setting is invalid, Unavailable if they do not answer."""
        try:
            self.client = new_client(**self._settings)
        except (TypeError, ValueError) as error:
            raise BadConfig(f"the settings of the Kafka client: {error}") from error
        self.watch(self.client)
        try:
            await asyncio.wait_for(self.client.bootstrap(), self._timeout_s * 2)
        except (KafkaError, OSError, TimeoutError) as error:
            await self.close()
            await self._explain(error)
        self.record_answer()

    async def close(self) -> None:
        self._closed = True
        for task in self._checks:
            task.cancel()
        await asyncio.wait_for(self.client.close(), self._timeout_s)

    def record_answer(self) -> None:
        """Record that a broker has answered."""
        self._last_answer_s = time.monotonic()

    async def keep_asking(self) -> None:
        """Until cancelled, request metadata whenever nothing else is requested, so that `trouble` stays correct, and
        check that all brokers answer."""
        await Loop("kafka ping", self._ping, every_s=_PING_S, delay_s=_PING_S).run()

    async def _ping(self) -> None:
        if time.monotonic() - self._last_answer_s >= _PING_S:
            await self.refresh()
        for broker in self.client.cluster.brokers():
            if not self.client.cluster.is_bootstrap(broker.nodeId):
                self._begin_check(broker.nodeId)

    # --- brokers ----------------------------------------------------------------------------------------------------

    def watch(self, client: Any) -> None:
        """Check a broker as soon as a client loses its connection to it, without waiting for the next regular check.

        If a dead broker's partition is added to a transaction, its shard is blocked until the broker is back.
        """

        def on_closed(connection: Any) -> None:
            for broker in self.client.cluster.brokers():
                if (broker.host, broker.port) == (connection.host, connection.port):
                    self._begin_check(broker.nodeId)

        on_connection_closed(client, on_closed)

    def _begin_check(self, broker: int) -> None:
        name = f"kafka broker {broker}"
        if not self._closed and all(task.get_name() != name for task in self._checks):
            task = asyncio.create_task(self._check_broker(broker), name=name)
            self._checks.add(task)
            task.add_done_callback(self._checks.discard)

    async def _check_broker(self, broker: int) -> None:
        """Check whether a broker answers at all."""
        try:
            async with asyncio.timeout(_SILENT_S):
                await self.client.send(broker, MetadataRequest([]))
            answers = True
        except (KafkaError, OSError, TimeoutError):
            answers = False
        if self._closed or answers == (broker not in self.down):
            return
        if answers:
            self.down.discard(broker)
        else:
            self.down.add(broker)
        log.info("broker %d %s", broker, "answers again" if answers else "does not answer", extra={"action": "broker"})
        self.brokers_changed()

    async def refresh(self) -> None:
        """Refresh the leaders. With a closed client this never returns."""
        done, _ = await asyncio.wait([self.client.force_metadata_update()], timeout=_REFRESH_S)
        if done and done.pop().result():
            self.record_answer()

    def trouble(self) -> str | None:
        silent = time.monotonic() - self._last_answer_s
        if silent < _SILENT_S:
            return None
        return f"no broker of {self._bootstrap} has answered for {silent:.0f} s"

    # --- requests -------------------------------------------------------------------------------------------------

    async def ask(self, node: int | str, request: Any, group: Any = _ASK) -> Any:
        response = await self.client.send(node, request, group=group)
        self.record_answer()
        return response

    async def ask_any(self, request: Any) -> Any:
        return await self.retry(lambda: self._ask_any(request))

    async def _ask_any(self, request: Any) -> Any:
        node = self.client.get_random_node()
        if node is None:
            await self.refresh()
            raise errors.NodeNotReadyError("no broker is known")
        return await self.ask(node, request)

    async def groups(self) -> list[tuple[str, str]]:
        """All groups of all brokers, with the type of each. Raises LogFailed."""

        async def ask() -> list[tuple[str, str]]:
            groups: list[tuple[str, str]] = []
            for broker in self.client.cluster.brokers():
                response = await self.ask(broker.nodeId, ListGroupsRequest())
                if response.error_code:
                    raise errors.for_code(response.error_code)("listing the groups")
                groups += response.groups
            return groups

        return await self.retry(ask)

    async def ask_controller(self, request: Any) -> Any:
        async def ask() -> Any:
            controller = self.client.cluster.controller
            if controller is None:
                await self.refresh()
                raise errors.NodeNotReadyError("no controller is known")
            return await self.ask(controller.nodeId, request)

        return await self.retry(ask)

    async def ask_coordinator(self, kind: CoordinationType, key: str, request: Any) -> Any:
        """Ask the coordinator of a group or a transactional id. Raises KafkaError."""
        coordinator = await self.client.coordinator_lookup(kind, key)
        return await self.ask(coordinator, request)

    async def metadata(self, topics: list[str] | None) -> list[Any]:
        """(error code, topic, internal, partitions) for these topics, or for all topics if None. Never creates a
        topic."""
        response = await self.ask_any(MetadataRequest(topics))
        return list(response.topics)

    async def ask_broker_settings(self, broker: int, names: list[str]) -> dict[str, str]:
        """The settings of a broker under these names; empty if duemq's user may not see them. Raises LogFailed."""
        request = DescribeConfigsRequest([(ConfigResourceType.BROKER.value, str(broker), names)])
        answer = await self.retry(lambda: self.ask(broker, request))
        return {name: value for code, *_, entries in answer.resources if not code for name, value, *_ in entries}

    async def retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of `call`, which is retried while a leader changes. Raises LogFailed if that takes too long."""
        deadline, is_refreshed = time.monotonic() + self._timeout_s, False
        while True:
            try:
                return await call()
            except (KafkaError, OSError) as error:
                retriable = not isinstance(error, KafkaError) or error.retriable
                if not retriable or self._closed or time.monotonic() > deadline:
                    raise LogFailed(f"Kafka at {self._bootstrap}: {error!r}") from error
                if getattr(error, "invalid_metadata", False) or isinstance(error, errors.NodeNotReadyError):
                    await self.refresh()
                    if not is_refreshed:  # the client has requested the topic's leaders only now
                        is_refreshed = True
                        continue
                await asyncio.sleep(_RETRY_S)

    def leader(self, topic: str, partition: int) -> int | None:
        """The broker that leads a partition; None if unknown. Then the client refreshes its metadata."""
        node: int | None = self.client.cluster.leader_for_partition(TopicPartition(topic, partition))
        if node is None:
            self.client.add_topic(topic)
        return None if node == -1 else node

    def forget(self, topic: str) -> None:
        """Forget a topic's leaders."""
        forget_topic(self.client, topic)

    def by_leader(self, partitions: Iterable[Partition]) -> dict[int, list[Partition]]:
        """Group partitions by their leaders. Raises LeaderNotAvailableError, which is retriable, if one has no
        leader."""
        groups: defaultdict[int | None, list[Partition]] = defaultdict(list)
        for where in partitions:
            groups[self.leader(*where)].append(where)  # called for all, so that one refresh finds all unknown leaders
        if None in groups:
            topic, partition = groups[None][0]
            raise errors.LeaderNotAvailableError(f"partition {partition} of topic {topic!r} has no leader")
        return {node: where for node, where in groups.items() if node is not None}

    async def offsets(
        self, partitions: Iterable[Partition], at: int = LATEST, *, committed: bool = True
    ) -> dict[Partition, int]:
        """The offset in each partition at EARLIEST, LATEST or a time; -1 if there is no record at or after that time.

        LATEST is the last stable offset or, with `committed` False, the high watermark.
        """
        targets = list(partitions)
        return await self.retry(lambda: self._offsets(targets, at, committed)) if targets else {}

    async def _offsets(self, partitions: list[Partition], at: int, committed: bool) -> dict[Partition, int]:
        offsets, isolation = {}, _READ_COMMITTED if committed else _READ_UNCOMMITTED
        for node, group in self.by_leader(partitions).items():
            request = OffsetRequest(-1, isolation, group_by_topic((where, (where[1], at)) for where in group))
            for topic, parts in (await self.ask(node, request)).topics:
                for partition, code, _, offset in parts:
                    if code:
                        raise errors.for_code(code)(f"partition {partition} of topic {topic!r}")
                    offsets[topic, partition] = offset
        return offsets

    async def sure_end(self, where: Partition, *, committed: bool) -> int:
        """The last stable offset of a partition, or its high watermark. Raises LogFailed.

        A former leader that does not know that it was replaced reports an end that is too low. So all brokers are asked
        who leads the partition: more than half of them must answer, and all answers must agree.
        """
        isolation = _READ_COMMITTED if committed else _READ_UNCOMMITTED
        request = OffsetRequest(-1, isolation, group_by_topic([(where, (where[1], LATEST))]))

        async def ask() -> int:
            brokers = self.client.cluster.brokers()
            answers = await asyncio.gather(*(self._leader_by(broker.nodeId, where) for broker in brokers))
            leaders = [leader for leader in answers if leader is not None]
            if 2 * len(leaders) <= len(brokers) or min(leaders) < 0 or len(set(leaders)) > 1:
                raise errors.LeaderNotAvailableError(f"brokers do not agree who leads {where}: {answers}")
            ((_, parts),) = (await self.ask(leaders[0], request)).topics
            ((_, code, _, end),) = parts
            if code:
                raise errors.for_code(code)(f"partition {where[1]} of topic {where[0]!r}")
            return int(end)

        return await self.retry(ask)

    async def _leader_by(self, broker: int, where: Partition) -> int | None:
        """The leader of a partition according to this broker, -1 if there is no leader; None if the broker does not
        answer."""
        try:
            async with asyncio.timeout(_SILENT_S):
                request = MetadataRequest([where[0]])
                ((_, _, _, partitions),) = (await self.ask(broker, request)).topics
        except (KafkaError, OSError, TimeoutError):
            return None
        return next((leader for _, number, leader, *_ in partitions if number == where[1]), -1)

    async def fetch(
        self, node: int, offsets: dict[Partition, int], wait_ms: int, max_bytes: int, group: Any = _ASK
    ) -> dict[Partition, FetchedRecords]:
        """Fetch batches from these offsets on. Returns as soon as there are any, at the latest after `wait_ms`. Raises
        KafkaError."""
        topics = group_by_topic((where, (where[1], offset, max_bytes)) for where, offset in offsets.items())
        request = FetchRequest(wait_ms, 1, max_bytes * 4, _READ_COMMITTED, topics)
        records = {}
        for topic, parts in (await self.ask(node, request, group)).topics:
            for partition, code, _, stable, start, aborted, *_, message_set in parts:
                error = errors.for_code(code) if code else None
                records[topic, partition] = FetchedRecords(error, stable, start, aborted, message_set)
        return records

    async def cut(self, before: dict[Partition, int]) -> None:
        """Make the brokers delete records below these offsets. Raises LogFailed."""

        async def cut() -> None:
            for node, group in self.by_leader(before).items():
                topics = group_by_topic((where, (where[1], before[where])) for where in group)
                request = DeleteRecordsRequest(topics, int(self._timeout_s * 500))
                for topic, answers, *_ in (await self.ask(node, request)).topics:
                    for _, _, code, *_ in answers:
                        # Out of range: records up to a higher offset were already deleted.
                        if code not in (0, errors.OffsetOutOfRangeError.errno):
                            raise errors.for_code(code)(topic)

        await self.retry(cut)

    # --- explanations ---------------------------------------------------------------------------------------------

    async def _explain(self, error: BaseException) -> None:
        """Find out why the client could not start, by asking the first broker again: aiokafka does not report the
        reason."""
        host, port, _ = self.client.hosts[0]
        options = {key: value for key, value in self._settings.items() if key in _OF_A_CONNECTION}
        protocol = self._settings.get("security_protocol", "PLAINTEXT")
        try:
            connection = await asyncio.wait_for(create_conn(host, port, **options), self._timeout_s)
        except _LOGIN_ERRORS as cause:
            raise BadConfig(f"{host}:{port} refused kafka.user and kafka.password: {cause}") from cause
        except ssl.SSLError as cause:
            raise BadConfig(
                f"{host}:{port} and duemq do not agree on TLS: {cause}. Check kafka.protocol and kafka.ca."
            ) from cause
        except (KafkaError, OSError, EOFError, TimeoutError) as cause:
            raise Unavailable(
                f"no Kafka broker answers at {self._bootstrap} over {protocol} "
                f"({type(cause).__name__}: {cause}). Check kafka.bootstrap and kafka.protocol."
            ) from cause
        connection.close()
        raise Unavailable(f"no Kafka broker answered at {self._bootstrap}: {error}") from error


_LOGIN_ERRORS = (
    errors.AuthenticationFailedError,
    errors.SaslAuthenticationFailed,
    errors.UnsupportedSaslMechanismError,
)
_OF_A_CONNECTION = frozenset((
    "client_id", "request_timeout_ms", "security_protocol", "ssl_context", "sasl_mechanism", "sasl_plain_username",
    "sasl_plain_password", "sasl_kerberos_service_name", "sasl_kerberos_domain_name", "sasl_oauth_token_provider",
))  # fmt: skip


def group_by_topic(items: Iterable[tuple[Partition, Any]]) -> list[tuple[str, list[Any]]]:
    """Group items by topic, in the form that Kafka's requests need."""
    groups: defaultdict[str, list[Any]] = defaultdict(list)
    for (topic, _), item in items:
        groups[topic].append(item)
    return list(groups.items())
