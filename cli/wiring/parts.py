"""From settings to the parts and their options."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    disable_created_metrics,
)
from starlette.types import ASGIApp

from duemq.bus.base import wall_clock
from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.options import KafkaOptions
from duemq.cli.settings.settings import Settings
from duemq.cluster.backend import Backend
from duemq.cluster.clock import GuardedClock
from duemq.delay.core.disk_watermarks import Watermarks
from duemq.delay.core.limits import CycleLimits
from duemq.delay.core.linger import Linger
from duemq.delay.node import NodeOptions
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.election.allocation import StrategyName
from duemq.election.zookeeper.options import ZooKeeperOptions
from duemq.model.errors import BadConfig
from duemq.model.failpoint import Failpoint, no_failpoint
from duemq.proxy.app import create_app
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.proxy.gateway.shard_router import selection_of
from duemq.proxy.request.ingress import Ingress
from duemq.storage.imports.object_store import ObjectStore, is_object
from duemq.storage.imports.policy import ImportPolicy
from duemq.storage.imports.row_rules import ImportLimits
from duemq.web.connections import ConnectionLimits

log = logging.getLogger(__name__)

FAILPOINT: Failpoint = no_failpoint
WALL_CLOCK: Callable[[], int] = wall_clock
"""Tests of whole processes replace both (`tests/support/node/hooks.py`). No setting does."""

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # it goes on while a machine is suspended
_TRANSACTION_S = 1e-6  # see Linger: at 10,000 messages/s in and out a shard makes 50 a second


def node_options(settings: Settings, *, alone: bool, trims: bool, holds: frozenset[int] | None = None) -> NodeOptions:
    delivery, storage = settings.delivery, settings.storage
    own, kafka = settings.embedded.linger_ms / 1000, settings.kafka.linger_ms / 1000
    linger = Linger(own) if trims else Linger(kafka, _TRANSACTION_S)
    return NodeOptions(
        cycle_limits=CycleLimits(
            max_messages=delivery.max_cycle_messages,
            max_bytes=delivery.max_cycle_bytes,
            max_attempts=delivery.max_attempts,
            retry_ms=delivery.retry_delays,
            dead_letter_topic=settings.topics.dead_letter,
            retention_ms=storage.retention,
            min_retention_ms=storage.min_retention,
        ),
        alone=alone,
        trims=trims,
        holds=holds,
        linger=linger,
        delay_files=TieringPolicy(
            settings.delay_files.seal_rows,
            settings.delay_files.seal_windows,
            settings.delay_files.load_ahead,
            rewrite_share=settings.delay_files.rewrite_share,
        ),
        importing=replace(import_policy(settings), copies=1 if alone else _copies(settings)),
        topic_partitions=settings.topics.partitions,
        cache_bytes=storage.cache_bytes,
        write_buffer_bytes=storage.write_buffer_bytes,
        flush_interval_s=storage.flush_interval_s,
        flush_bytes=storage.flush_bytes,
        retention_s=settings.embedded.retention / 1000,
        ledger_retention_s=settings.kafka.retention / 1000,
        purge_at=_hour_and_minute(storage.purge_at) if storage.purge_mode == "off_peak" else None,
        marks=Watermarks(
            storage.purge_percent, storage.shorten_percent, storage.refuse_percent, storage.min_free_bytes
        ),
        max_clock_offset_ms=settings.node.max_clock_offset_ms,
    )


def import_policy(settings: Settings) -> ImportPolicy:
    """What files may be imported: the same in the HTTP API as on the nodes."""
    own = settings.limits
    limits = ImportLimits(
        max_payload_bytes=own.max_payload_bytes,
        max_headers=own.max_headers,
        max_headers_bytes=own.max_headers_bytes,
        max_key_bytes=own.max_key_bytes,
        topics=settings.topics.allowed,
    )
    delay_files = settings.delay_files
    return ImportPolicy(
        tuple(Path(place).resolve() for place in delay_files.import_from if not is_object(place)),
        limits,
        patience_ms=delay_files.import_timeout,
        furthest_ms=own.max_delay,
        prefixes=tuple(place for place in delay_files.import_from if is_object(place)),
        store=ObjectStore(
            delay_files.s3_endpoint, delay_files.s3_region, delay_files.s3_access_key, delay_files.s3_secret_key
        ),
    )


def _copies(settings: Settings) -> int:
    """How many replicas have an imported file: as many as the brokers keep of other messages, where nothing is set."""
    return settings.delay_files.import_replicas or settings.kafka.min_insync_replicas


def _hour_and_minute(time: str) -> tuple[int, int]:
    hour, minute = map(int, time.split(":"))
    return hour, minute


def kafka_options(settings: Settings) -> KafkaOptions:
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


def http_api(settings: Settings, backend: Backend, metrics: CollectorRegistry, closing: asyncio.Event) -> ASGIApp:
    """The HTTP API in front of a backend. `closing`: see `create_app`. The log says who may use it."""
    if keys := len(settings.http.api_keys):
        log.info("API keys are asked for; %d are set", keys, extra={"action": "http.keys", "keys": keys})
    else:
        log.log(
            logging.INFO if is_loopback(settings.host) else logging.WARNING,
            "no API keys are set (http.api_keys): everybody who reaches %s may send, read and cancel",
            settings.listen,
            extra={"action": "http.keys", "keys": 0},
        )
    selection = selection_of(settings.proxy.selection, backend.shards)
    gateway = CommandGateway(backend, selection, settings.http.answer_timeout_ms / 1000)
    ingress = Ingress(settings.ingress_limits(), backend.why_clock_out)
    http = settings.http.model_copy(update={"hosts": (*settings.http.hosts, settings.host)})
    return create_app(gateway, ingress, http, metrics, backend.clock, closing, import_policy(settings))


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def open_bus(settings: Settings, clock: Callable[[], int]) -> KafkaBus:
    return await KafkaBus.open(kafka_options(settings), clock, FAILPOINT)


def registry() -> CollectorRegistry:
    """The registry for the metrics of a process. Without a `_created` series beside each counter and histogram: twice
    the series."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # it holds for the whole process
    metric_registry = CollectorRegistry()
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        metric_registry.register(collector)
    return metric_registry


def guarded_clock(settings: Settings) -> GuardedClock:
    """The clock of a process among others, whose own may be wrong."""
    return GuardedClock(WALL_CLOCK, _steady, settings.node.max_clock_offset_ms)


def _steady() -> int:
    return time.clock_gettime_ns(_STEADY) // 1_000_000


def check_cluster(settings: Settings) -> None:
    """Raises BadConfig where something is missing that a cluster needs."""
    if not settings.kafka.bootstrap:
        raise BadConfig("kafka.bootstrap is not set: name some brokers as HOST:PORT, or with --kafka")
    if not settings.zookeeper.hosts:
        raise BadConfig("zookeeper.hosts is not set: name the servers as HOST:PORT, or with --zookeeper")
