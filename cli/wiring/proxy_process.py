"""`duemq proxy`: the HTTP API of a cluster on Kafka and ZooKeeper."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from duemq.bus.base import Bus
from duemq.cli.settings.settings import Settings
from duemq.cli.systemd.notifier import Notifier
from duemq.cli.systemd.watchdog import watchdog
from duemq.cli.tracing.open import calls_of, open_tracing
from duemq.cli.wiring.admin import beside, both
from duemq.cli.wiring.http_api import CONSOLE, http_api
from duemq.cli.wiring.membership import open_directory, shared_identity
from duemq.cli.wiring.parts import (
    check_cluster,
    check_http_access,
    connection_limits,
    guarded_clock,
    http_tls,
    node_client_tls,
    open_bus,
    reach_brokers,
    registry,
)
from duemq.cluster.admin.administration import Administration
from duemq.cluster.clocks.clock import GuardedClock
from duemq.cluster.clocks.clock_watch import ClockWatch
from duemq.cluster.relays.log import RelayFiguresReader
from duemq.cluster.topics.internal_topics import IMPORTER, create_logs
from duemq.cluster.topics.own_logs import OwnLogs
from duemq.cluster.topics.topic_states import TopicStates
from duemq.model.messages.ids import IdCodec
from duemq.model.topics.cluster_identity import ClusterIdentity
from duemq.proxy.gateway.buffer_age import BufferAge
from duemq.proxy.gateway.cluster_backend import ProxyBackend
from duemq.proxy.gateway.ledger_follower import LedgerFollower
from duemq.proxy.gateway.remote_reader import RemoteReader, node_client
from duemq.web.server import listen_on, serve_http, stop_on_signals, url_of


async def _learn_of_brokers(
    settings: Settings,
    identity: ClusterIdentity,
    own_logs: OwnLogs,
    clock: GuardedClock,
    opened: AsyncExitStack,
    stop: asyncio.Event,
) -> tuple[Bus, ClockWatch, TopicStates] | None:
    """Read from the brokers everything that a proxy needs to serve. This is repeated while they are unreachable. None
    if stopped."""

    async def attempt() -> tuple[Bus, ClockWatch, TopicStates]:
        async with AsyncExitStack() as made:
            bus = await open_bus(settings, clock, identity.prefix, (IMPORTER,))
            made.push_async_callback(bus.close)
            watch = ClockWatch(clock, settings.node.max_clock_offset_ms)
            await watch.measure(bus)
            await create_logs(bus, identity.shards)
            await own_logs.check(bus)
            topic_states = TopicStates(bus, settings.topics.partitions)
            made.push_async_callback(topic_states.close)
            await topic_states.learn()
            await opened.enter_async_context(made.pop_all())
            return bus, watch, topic_states

    return await reach_brokers(attempt, stop)


async def run_proxy(
    settings: Settings,
    *,
    shared: bool = False,
    notifier: Notifier = Notifier(),  # noqa: B008  # a value
) -> None:
    """Run a proxy until SIGINT or SIGTERM. `shared`: other processes listen on the same port."""
    check_cluster(settings)
    check_http_access(settings)
    metrics = registry()
    tls, node_client_context = http_tls(settings, metrics), node_client_tls(settings)
    async with AsyncExitStack() as opened:
        listener = listen_on(settings.listen, shared=shared)
        stop = stop_on_signals()
        systemd = await opened.enter_async_context(watchdog(notifier, stop.request))
        directory = await open_directory(settings, opened)
        identity = await shared_identity(directory, settings, stop, makes=False)
        if identity is None:
            return
        clock = guarded_clock(settings)
        own_logs = OwnLogs(identity, directory.keep_topic_ids, settings.kafka.accept_topics)
        reached = await _learn_of_brokers(settings, identity, own_logs, clock, opened, stop)
        if reached is None:
            return
        bus, watch, topic_states = reached
        follower = LedgerFollower(bus, identity.shards)
        age = BufferAge(settings.kafka.retention, watch.accepting)
        http = node_client(settings.http.answer_timeout_ms / 1000, settings.node.token, tls=node_client_context)
        opened.push_async_callback(http.aclose)
        reader = RemoteReader(directory, http)
        backend = ProxyBackend(
            identity.cluster, bus, IdCodec(identity.secret), topic_states, follower, reader, directory, directory,
            watch, metrics, age, reader,
        )  # fmt: skip
        systemd.status = lambda: backend.readiness().sentence
        admin = Administration(lambda: bus, clock)
        instance = url_of(listener, settings.host)
        tracing = await opened.enter_async_context(open_tracing(settings, "proxy", instance, metrics))
        relays = RelayFiguresReader(lambda: bus, clock)
        api = http_api(settings, backend, metrics, stop, admin, tracing, relays.shown)

        async def follow(shut: asyncio.Event) -> None:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(follower.run(), name="ledger"),
                    group.create_task(watch.run(bus), name="clock"),
                    group.create_task(own_logs.watch(bus), name="own logs"),
                    group.create_task(age.run(bus, follower.applied), name="buffer age"),
                ]
                await shut.wait()
                for task in tasks:
                    task.cancel()

        await serve_http(
            calls_of(api.app, tracing),
            listener,
            url_of(listener, settings.host, secure=tls is not None),
            settings.http.shutdown_grace_s,
            stop,
            systemd.ready_after(both(follower.ready, admin.log.ready)),
            beside(admin, follow, api.app.history.run, api.jobs.run, api.declared.run, relays.run),
            limits=connection_limits(settings),
            tls=tls,
            console=CONSOLE,
        )
