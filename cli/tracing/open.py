"""Sets up tracing from the settings; imports nothing if tracing is off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from duemq.cli.settings.settings import Settings
from duemq.cluster.backend import Backend
from duemq.model.errors import BadConfig
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.proxy.gateway.shard_router import ShardRouter
from duemq.proxy.tracing.traced_calls import TracedCalls

if TYPE_CHECKING:
    from duemq.cluster.tracing.tracing import Tracing
    from duemq.delay.metrics import Observer


@asynccontextmanager
async def open_tracing(
    settings: Settings, kind: str, instance: str, metrics: CollectorRegistry
) -> AsyncIterator[Tracing | None]:
    """The tracing; None if it is off. `kind`: serve, node or proxy. Raises BadConfig if the extra is missing."""
    if not settings.tracing.enabled:
        yield None
        return
    try:
        from duemq.cluster.tracing.tracing import Tracing  # needs an extra, and takes 200 ms
    except ModuleNotFoundError as error:
        raise BadConfig(
            f"tracing.enabled = true needs {error.name}, which is not installed: pip install 'duemq[otel]'"
        ) from error
    tracing = Tracing.open(kind, instance, settings.tracing.spans_per_s, metrics)
    try:
        yield tracing
    finally:
        await tracing.close()


def observer_for(metrics: CollectorRegistry, tracing: Tracing | None) -> Observer | None:
    """The observer of a traced node's cycles; None: the node's own observer."""
    if tracing is None:
        return None
    from duemq.delay.shard.traced_observer import TracedObserver

    return TracedObserver(metrics, tracing)


def gateway_for(backend: Backend, selection: ShardRouter, answer_s: float, tracing: Tracing | None) -> CommandGateway:
    if tracing is None:
        return CommandGateway(backend, selection, answer_s)
    from duemq.proxy.tracing.gateway import TracedGateway

    return TracedGateway(backend, selection, answer_s, tracing)


def calls_of(app: ASGIApp, tracing: Tracing | None) -> ASGIApp:
    """The application to serve: if tracing is on, requests join their caller's trace."""
    return app if tracing is None else TracedCalls(app)
