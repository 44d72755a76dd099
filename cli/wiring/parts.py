"""Builds parts that several kinds of process share, and their options, from the settings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    disable_created_metrics,
)

from duemq.background.loop import Loop
from duemq.background.loop_collector import LoopCollector
from duemq.bus.base import Bus, wall_clock
from duemq.cli.settings.settings import Settings
from duemq.cluster.clocks.clock import GuardedClock
from duemq.election.allocation import StrategyName
from duemq.election.zookeeper.options import ZooKeeperOptions
from duemq.model.errors import BadConfig
from duemq.model.failpoint import Failpoint, no_failpoint
from duemq.model.topics.cluster_identity import ClusterIdentity
from duemq.model.topics.topic_names import OWN, TopicNames
from duemq.tls.contexts import FileContext, client_context, node_context, server_context
from duemq.tls.files import TlsFiles
from duemq.web.connection.connections import ConnectionLimits
from duemq.web.tls.server_tls import ServerTls

if TYPE_CHECKING:
    from duemq.bus.kafka.options import KafkaOptions

T = TypeVar("T")
Identity = TypeVar("Identity", bound=ClusterIdentity)

FAILPOINT: Failpoint = no_failpoint
WALL_CLOCK: Callable[[], int] = wall_clock
"""Tests of whole processes replace `FAILPOINT` and `WALL_CLOCK` (`tests/support/node/hooks.py`). No setting does."""

LOOK_AGAIN_S = 0.5
"""The pause before looking for other processes again."""

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # runs on while the machine is suspended


def check_prefix(settings: Settings, identity: Identity) -> Identity:
    """Return the identity. Raises BadConfig if kafka.prefix differs from its prefix: topics keep their names."""
    if settings.kafka.prefix not in ("", identity.prefix):
        raise BadConfig(
            f"kafka.prefix = {settings.kafka.prefix}, but the topics of cluster {settings.cluster} begin with "
            f"{identity.prefix}: leave it out"
        )
    return identity


def kafka_options(settings: Settings, prefix: str = OWN) -> KafkaOptions:
    """The options for Kafka. `prefix`: the prefix of the cluster's topics and groups on the brokers."""
    from duemq.bus.kafka.options import KafkaOptions  # aiokafka takes 70 ms; the embedded log does not need it

    own = settings.kafka
    return KafkaOptions(
        bootstrap=",".join(own.bootstrap),
        cluster=settings.cluster,
        replication_factor=own.replication_factor,
        min_insync_replicas=own.min_insync_replicas,
        retention_ms=own.retention,
        max_message_bytes=own.max_message_bytes,
        protocol=own.protocol,
        mechanism=own.mechanism,
        user=own.user or None,
        password=own.password or None,
        ca=own.ca_file or None,
        cert=own.cert_file or None,
        key=own.key_file or None,
        request_timeout_ms=own.request_timeout_ms,
        transaction_timeout_ms=own.transaction_timeout_ms,
        buffer_bytes=own.buffer_bytes,
        transactions=own.transactions,
        names=TopicNames(prefix),
    )


def zookeeper_options(settings: Settings) -> ZooKeeperOptions:
    own = settings.zookeeper
    return ZooKeeperOptions(
        hosts=",".join(own.hosts),
        chroot=own.chroot,
        session_timeout_s=own.session_timeout_s,
        user=own.user,
        password=own.password,
        acl=own.acl,
        tls=own.tls == "on",
        ca_file=own.ca_file,
        cert_file=own.cert_file,
        key_file=own.key_file,
        strategy=StrategyName(own.strategy),
    )


def connection_limits(settings: Settings) -> ConnectionLimits:
    own = settings.http
    return ConnectionLimits(
        connections=own.max_connections,
        head_bytes=own.max_head_bytes,
        head_s=own.head_timeout_s,
        body_s=own.body_timeout_s,
        write_s=own.write_timeout_s,
        unsent_bytes=own.max_inflight_bytes,
        keep_alive_s=own.keep_alive_s,
        drain_s=own.drain_s,
    )


async def open_bus(settings: Settings, clock: Callable[[], int], prefix: str, abandoned: Collection[str] = ()) -> Bus:
    """Open the bus on Kafka. `abandoned`: see `KafkaBus.open`."""
    from duemq.bus.kafka.bus import KafkaBus  # as above
    from duemq.bus.kafka.named_bus import NamedBus

    options = kafka_options(settings, prefix)
    bus = await KafkaBus.open(options, clock, FAILPOINT, abandoned)
    return bus if prefix == OWN else NamedBus(bus, options.names)


def registry() -> CollectorRegistry:
    """The registry for a process's metrics, without the `_created` series of each counter and histogram, which would
    double the number of series."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # it holds for the whole process
    metric_registry = CollectorRegistry()
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR, LoopCollector()):
        metric_registry.register(collector)
    return metric_registry


def guarded_clock(settings: Settings) -> GuardedClock:
    """The clock of a process in a cluster, guarded in case it is wrong."""
    return GuardedClock(WALL_CLOCK, _steady, settings.node.max_clock_offset_ms)


def _steady() -> int:
    return time.clock_gettime_ns(_STEADY) // 1_000_000


def http_tls(settings: Settings, metrics: CollectorRegistry) -> ServerTls | None:
    """The TLS of the HTTP API, or None. Raises BadConfig."""
    own = settings.http
    files = TlsFiles(
        own.client_ca_file, own.cert_file, own.key_file, "http.client_ca_file", "http.cert_file", "http.key_file"
    )
    if not own.cert_file and (files or own.client_auth != "none"):
        raise BadConfig("http.cert_file is not set: http.key_file, http.client_ca_file and http.client_auth need it")
    if own.client_ca_file and own.client_auth == "none":
        raise BadConfig("http.client_ca_file is set: set http.client_auth = optional or required, too")
    return _server_tls(server_context(files, own.client_auth), files, metrics) if files else None


def node_tls(settings: Settings, metrics: CollectorRegistry, host: str) -> ServerTls | None:
    """The TLS of a node that other processes reach as `host`, or None. Raises BadConfig."""
    files, client_auth = _node_files(settings), settings.node.client_auth
    return _server_tls(node_context(files, client_auth, host), files, metrics) if files.cert else None


def node_client_tls(settings: Settings) -> FileContext | None:
    """The TLS that proxies and nodes use to reach nodes, or None. Raises BadConfig."""
    files = _node_files(settings)
    return client_context(files) if files else None


def _node_files(settings: Settings) -> TlsFiles:
    own = settings.node
    return TlsFiles(own.ca_file, own.cert_file, own.key_file, "node.ca_file", "node.cert_file", "node.key_file")


def _server_tls(context: FileContext, files: TlsFiles, metrics: CollectorRegistry) -> ServerTls:
    tls = ServerTls(context, files.cert, files.cert_setting)
    tls.measure(metrics)
    tls.reload_on_signal()
    return tls


async def reach_brokers(attempt: Callable[[], Awaitable[T]], stop: asyncio.Event) -> T | None:
    """The result of `attempt`, repeated while brokers are unreachable (Unavailable); None if stopped."""
    reached: list[T] = []

    async def turn() -> None:
        reached.append(await attempt())

    await Loop("waiting for the brokers", turn, first_s=LOOK_AGAIN_S, ends_on=(Exception,)).run(stop)
    return reached[0] if reached else None


def check_cluster(settings: Settings) -> None:
    """Raise BadConfig if a setting that a cluster needs is missing."""
    if not settings.kafka.bootstrap:
        raise BadConfig("kafka.bootstrap is not set: name some brokers as HOST:PORT, or with --kafka")
    if not settings.zookeeper.hosts:
        raise BadConfig("zookeeper.hosts is not set: name the servers as HOST:PORT, or with --zookeeper")


def check_http_access(settings: Settings) -> None:
    """Raise BadConfig if other machines can reach the HTTP API without a key or login, unless http.open is set."""
    http = settings.http
    if not http.api_keys and http.access != "keys" and not http.open and not settings.login.issuer:
        _require_loopback(settings.listen, "http.api_keys", 'http.access = "keys" or http.api_keys')


def check_node_access(settings: Settings, listen: str) -> None:
    """Like `check_http_access`, for a node's address."""
    if not settings.node.token and not settings.http.open:
        _require_loopback(listen, "node.token", "node.token")


def _require_loopback(listen: str, missing: str, remedy: str) -> None:
    if is_loopback(listen.rpartition(":")[0].strip("[]")):
        return
    raise BadConfig(
        f"{missing} is not set, and {listen} can be reached from other machines: everyone there could send, read "
        f"and cancel. Set {remedy}, listen on 127.0.0.1, or, if strangers are kept away otherwise, set "
        "http.open = true"
    )


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
