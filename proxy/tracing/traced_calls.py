"""Reads the caller's trace from a request's `traceparent` header, and keeps it in the context of the request's task."""

from __future__ import annotations

from contextvars import ContextVar

from starlette.types import ASGIApp, Receive, Scope, Send

from duemq.cluster.tracing.trace_context import Carrier, is_sampled

CALLER: ContextVar[Carrier | None] = ContextVar("caller", default=None)
"""The trace context of the current request, if it is sampled."""


class TracedCalls:
    """Wraps an application, and sets `CALLER` for each of its requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            CALLER.set(_carrier(scope))  # in the context of this request's task
        await self._app(scope, receive, send)


def _carrier(scope: Scope) -> Carrier | None:
    carrier = {
        name.decode(): value.decode("latin-1")
        for name, value in scope["headers"]
        if name in (b"traceparent", b"tracestate")
    }
    return carrier if is_sampled(carrier.get("traceparent", "")) else None
