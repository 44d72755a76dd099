"""The process of `duemq relay`, on Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duemq.cli.settings.settings import Settings
from duemq.cli.systemd.notifier import Notifier
from duemq.cli.systemd.watchdog import watchdog
from duemq.cli.wiring.admin import beside
from duemq.cli.wiring.membership import prefix_for_relay
from duemq.cli.wiring.parts import connection_limits, guarded_clock, open_bus, reach_brokers, registry
from duemq.cli.wiring.relay.relay_of_process import RelayOfProcess
from duemq.cluster.admin.administration import Administration
from duemq.cluster.topics.internal_topics import ADMIN, create_admin_log
from duemq.model.errors import BadConfig
from duemq.model.readiness import Readiness, Reason
from duemq.model.topics.topic_names import TopicNames
from duemq.web import probes
from duemq.web.server import listen_on, serve_http, stop_on_signals, url_of


@dataclass(frozen=True)
class RelayStatus:
    """A relay's status: see `probes.ProbeReport`."""

    admin: Administration
    relay: RelayOfProcess

    def cluster(self) -> dict[str, Any]:
        return {"destinations": {name: self.relay.shown(name) for name in sorted(self.admin.destinations.by_name)}}

    def readiness(self) -> Readiness:
        topics = () if self.admin.log.trouble is None else (ADMIN,)
        return Readiness(None if self.admin.log.ready.is_set() else Reason.STARTING, topics=topics)

    def stuck(self) -> Mapping[int, float]:
        return {}


@dataclass(frozen=True)
class _Service:
    gateway: RelayStatus
    registry: CollectorRegistry


async def run_relay(
    settings: Settings,
    worker: int = 0,
    notifier: Notifier = Notifier(),  # noqa: B008  # a value
) -> None:
    """Run a relay until SIGINT or SIGTERM."""
    if not settings.kafka.bootstrap:
        raise BadConfig("kafka.bootstrap is not set: name some brokers as HOST:PORT, or with --kafka")
    metrics = registry()
    async with AsyncExitStack() as opened:
        host, _, port = settings.relay.listen.rpartition(":")
        listener = listen_on(f"{host}:{int(port) + worker}")
        opened.callback(listener.close)
        stop = stop_on_signals()
        systemd = await opened.enter_async_context(watchdog(notifier, stop.request))
        clock = guarded_clock(settings)
        prefix = await prefix_for_relay(settings, opened, stop)
        if prefix is None:
            return
        bus = await reach_brokers(partial(open_bus, settings, clock, prefix), stop)
        if bus is None:
            return
        opened.push_async_callback(bus.close)
        await create_admin_log(bus)
        admin = Administration(lambda: bus, clock)
        relay = RelayOfProcess(settings, admin, lambda: bus, None, metrics, names=TopicNames(prefix))
        service = _Service(RelayStatus(admin, relay), metrics)
        systemd.status = lambda: service.gateway.readiness().sentence
        metrics.register(probes.ReadinessCollector(service.gateway.readiness))

        async def until_end(shut: asyncio.Event) -> None:
            await shut.wait()

        work = beside(admin, until_end, relay.run)
        await serve_http(
            _app(service), listener, url_of(listener, host), settings.http.shutdown_grace_s, stop,
            systemd.ready_after(admin.log.ready.wait), work, limits=connection_limits(settings),
        )  # fmt: skip


def _app(service: _Service) -> Starlette:
    async def answer(endpoint: Any, request: Request) -> Response:
        made: Response = await endpoint(service, request)
        return made

    paths = {
        "/metrics": probes.metrics,
        "/livez": probes.livez,
        "/readyz": probes.readyz,
        "/v1/cluster": probes.cluster,
    }
    return Starlette(routes=[Route(path, partial(answer, endpoint)) for path, endpoint in paths.items()])
