"""Creates spans by OpenTelemetry's conventions for messaging: `schedule`, `cancel` and `deliver`.

`schedule` and `cancel` are children of the caller's span. `deliver` begins a new trace that is linked to the message's
trace: weeks may lie between the two, and no backend keeps a trace open that long. A thread exports spans in batches.
This module is imported only if tracing is on, because it needs the extra `duemq[otel]`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Self

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, Counter

from duemq import __version__
from duemq.cluster.tracing.budget import SpanBudget
from duemq.cluster.tracing.trace_context import Carrier
from duemq.model.errors import DuemqError, Rejected

_SYSTEM = "duemq"
_CLOSE_MS = 5_000
_MAX_LINKS = 128  # per span, which is OpenTelemetry's own limit
_NS_PER_MS = 1_000_000

_propagator = TraceContextTextMapPropagator()
Attributes = Mapping[str, str | int | float]


class Tracing:
    """Creates spans, at most `spans_per_s` a second. All names and attributes are defined here. `clock`: returns the
    time in seconds, and never goes back."""

    def __init__(
        self,
        provider: TracerProvider,
        spans_per_s: int,
        registry: CollectorRegistry,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("duemq", __version__)
        self._budget, self._clock = SpanBudget(spans_per_s, clock()), clock
        self._untraced = Counter(
            "duemq_untraced_messages_total",
            "Sampled messages, or requests without one, that got no span of this operation: tracing.spans_per_s",
            ("operation",), registry=registry,
        )  # fmt: skip
        for operation in ("schedule", "cancel", "deliver"):
            self._untraced.labels(operation)

    @classmethod
    def open(cls, kind: str, instance: str, spans_per_s: int, registry: CollectorRegistry) -> Self:
        """Start exporting to OTEL_EXPORTER_OTLP_ENDPOINT. `kind`: serve, node or proxy; `instance`: identifies this
        process."""
        own = {"service.version": __version__, "service.instance.id": instance}
        if "OTEL_SERVICE_NAME" not in os.environ:
            own["service.name"] = f"duemq-{kind}"
        provider = TracerProvider(resource=Resource.create(own))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider, spans_per_s, registry)

    async def close(self) -> None:
        """Send the remaining spans, within 5 s."""
        await asyncio.to_thread(self._provider.force_flush, _CLOSE_MS)
        await asyncio.to_thread(self._provider.shutdown)

    def take(self, operation: str, sampled: int) -> int:
        """How many of the sampled messages an operation may trace now. The others are counted as untraced."""
        taken = self._budget.take(sampled, self._clock())
        if taken < sampled:
            self._untraced.labels(operation).inc(sampled - taken)
        return taken

    @contextmanager
    def request(
        self, operation: str, caller: Carrier | None, messages: Sequence[Carrier], attributes: Attributes
    ) -> Iterator[Span]:
        """A request's span. Its parent is the caller's span or, if that is not traced, the first message's. It is
        linked to the messages. A DuemqError that is raised inside is recorded in the span."""
        parent = _context(caller or messages[0])
        links = [link for each in messages[:_MAX_LINKS] if (link := _link(each)) is not None]
        name = _name(operation, attributes)
        with self._tracer.start_as_current_span(
            name, parent, SpanKind.SERVER, {**_operation(operation), **attributes}, links if caller else (),
            record_exception=False, set_status_on_exception=False,
        ) as span:  # fmt: skip
            try:
                yield span
            except DuemqError as error:
                code = error.code if isinstance(error, Rejected) else type(error).__name__
                span.set_attribute("error.type", code)
                span.set_status(Status(StatusCode.ERROR, str(error)))
                raise

    def delivered(self, message: Carrier, attributes: Attributes, begun_ms: int, ended_ms: int) -> None:
        """Create the span of a delivery between these times (epoch ms)."""
        link = _link(message)
        if link is None:
            return
        attributes = {**_operation("deliver"), "messaging.operation.type": "send", **attributes}
        span = self._tracer.start_span(
            _name("deliver", attributes), Context(), SpanKind.CLIENT, attributes, [link], begun_ms * _NS_PER_MS
        )
        span.end(ended_ms * _NS_PER_MS)


def _operation(name: str) -> dict[str, str | int | float]:
    return {"messaging.system": _SYSTEM, "messaging.operation.name": name}


def _name(operation: str, attributes: Attributes) -> str:
    destination = attributes.get("messaging.destination.name")
    return operation if destination is None else f"{operation} {destination}"


def _context(carrier: Carrier) -> Context:
    return _propagator.extract(carrier, Context())


def _link(carrier: Carrier) -> Link | None:
    context = get_current_span(_context(carrier)).get_span_context()
    return Link(context) if context.is_valid else None
