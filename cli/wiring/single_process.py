"""`duemq serve`: everything in one process, a node and the HTTP API in front of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter

from duemq.bus.base import Bus, wall_clock
from duemq.bus.embedded.bus import EmbeddedBus
from duemq.cli.settings.settings import Settings
from duemq.cli.systemd.notifier import Notifier
from duemq.cli.systemd.watchdog import watchdog
from duemq.cli.tracing.open import calls_of, observer_for, open_tracing
from duemq.cli.wiring.admin import administration_of, beside, both, key_maker
from duemq.cli.wiring.http_api import CONSOLE, http_api
from duemq.cli.wiring.node_options import node_options
from duemq.cli.wiring.parts import (
    check_http_access,
    check_prefix,
    connection_limits,
    guarded_clock,
    http_tls,
    open_bus,
    registry,
)
from duemq.cli.wiring.relay.relay_of_process import RelayOfProcess
from duemq.cluster.relays.log import RelayFiguresReader
from duemq.cluster.topics.internal_topics import IMPORTER
from duemq.cluster.topics.own_logs import OwnLogs
from duemq.delay.api.control_socket import Control
from duemq.delay.node import Node
from duemq.delay.node_backend import NodeBackend
from duemq.delay.recovery.consistent_snapshot import freeze
from duemq.election.single import SingleElection
from duemq.model.errors import BadConfig
from duemq.model.topics.topic_names import OWN, TopicNames, prefix_of
from duemq.storage.data_folder import Folder, FolderInfo
from duemq.web.server import Companion, listen_on, serve_http, stop_on_signals, url_of


async def serve(
    settings: Settings,
    companion: Companion | None = None,
    notifier: Notifier = Notifier(),  # noqa: B008  # a value
) -> None:
    """Serve until SIGINT or SIGTERM. Raises Fatal if it cannot start or its data is inconsistent.

    `companion` runs beside the server once it is ready, such as the demonstration of `make run`.
    """
    own_log = settings.bus == "embedded"
    if not own_log and not settings.kafka.bootstrap:
        raise BadConfig("bus = kafka, but kafka.bootstrap is not set: name some brokers as HOST:PORT, or with --kafka")
    check_http_access(settings)
    metrics = registry()
    tls = http_tls(settings, metrics)
    listener = listen_on(settings.listen)
    stop = stop_on_signals()
    shards = settings.shards if "shards" in settings.model_fields_set else None
    folder = Folder.open(settings.data, shards, prefix=OWN if own_log else prefix_of(settings.cluster))
    async with AsyncExitStack() as opened:
        opened.callback(folder.close)
        url = url_of(listener, settings.host, secure=tls is not None)
        tracing = await opened.enter_async_context(open_tracing(settings, "serve", url, metrics))
        clock = wall_clock if own_log else guarded_clock(settings)
        node = Node(
            folder,
            _log_of(settings, folder.info, clock, metrics),
            SingleElection(folder.info.shards, url),
            node_options(settings, alone=True, trims=own_log),
            metrics,
            clock,
            observer=observer_for(metrics, tracing),
            check_logs=OwnLogs(folder.info, folder.keep_topic_ids, settings.kafka.accept_topics).check,
        )
        admin = administration_of(node, clock)
        backend = NodeBackend(node, settings.http.answer_timeout_ms / 1000)
        api = http_api(
            settings, backend, metrics, stop, admin, tracing, lambda name: figures(name),
            lambda name, topics: relay.ended(name, topics),
            (lambda name: relay.leases(name)) if own_log and settings.relay.enabled else None,
        )  # fmt: skip
        schedule = api.gateway.send if own_log else None
        log = _log_path(folder.info.path) if own_log else None
        names = TopicNames(folder.info.prefix)
        relay = RelayOfProcess(settings, admin, lambda: api.gateway.bus, schedule, metrics, log, names)
        relays = RelayFiguresReader(lambda: api.gateway.bus, clock)
        figures, readers = (relay.shown, ()) if own_log else (relays.shown, (relays.run,))
        grace_s = settings.http.shutdown_grace_s
        relays_run = (relay.run,) if settings.relay.enabled else ()
        work = beside(admin, node.run, api.app.history.run, api.jobs.run, api.declared.run, *readers, *relays_run)
        ready = both(node.ready, admin.log.ready)
        control = Control(folder.info.path, partial(freeze, node), node.recover, key_maker(admin))
        async with control, watchdog(notifier, stop.request) as systemd:
            systemd.stuck, systemd.status = backend.stuck, lambda: backend.readiness().sentence
            limits = connection_limits(settings)
            calls = calls_of(api.app, tracing)
            await serve_http(
                calls, listener, url, grace_s, stop, systemd.ready_after(ready), work, companion, limits, tls, CONSOLE
            )


def _log_path(data: Path) -> Path:
    return data / "bus"


def _log_of(
    settings: Settings, info: FolderInfo, clock: Callable[[], int], metrics: CollectorRegistry
) -> Callable[[], Awaitable[Bus]]:
    async def open_kafka() -> Bus:
        return await open_bus(settings, clock, check_prefix(settings, info).prefix, (IMPORTER,))

    if settings.bus == "kafka":
        return open_kafka
    syncs = Counter("duemq_log_syncs", "Syncs of the embedded log, by kernel or thread.", ["by"], registry=metrics)
    by_kernel, by_thread = syncs.labels("kernel"), syncs.labels("thread")

    def on_sync(kernel: bool) -> None:
        (by_kernel if kernel else by_thread).inc()

    async def open_embedded() -> Bus:
        path, buffer_bytes = _log_path(info.path), settings.embedded.buffer_bytes
        return await EmbeddedBus.open(path, buffer_bytes=buffer_bytes, clock=clock, on_sync=on_sync)

    return open_embedded
