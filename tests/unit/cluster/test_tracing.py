"""Which messages are traced, and the spans that are made of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from prometheus_client import CollectorRegistry

from duemq.cluster.tracing.budget import SpanBudget
from duemq.cluster.tracing.trace_context import Carrier, asks_for_spans, sampled_context
from duemq.cluster.tracing.tracing import Tracing
from duemq.delay.core.outbox import Outbox
from duemq.delay.shard.traced_observer import TracedObserver
from duemq.model.errors import Unavailable
from duemq.model.log.ledger import Answer, Entry
from duemq.model.messages.key import make_key
from duemq.model.messages.message import CANCEL, MOVE, Draft
from duemq.model.messages.record import headers_of, pack_headers, pack_record
from duemq.proxy.gateway.base import ChangeOutcome, Receipt
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.proxy.tracing.gateway import TracedGateway
from duemq.proxy.tracing.traced_calls import CALLER, TracedCalls

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
NOW = 1_795_255_200_000
SYSTEM = (("duemq-id", b"A" * 32), ("duemq-due", b"%d" % NOW), ("duemq-attempt", b"1"))


def frame(*headers: tuple[str, bytes], value: bytes = b"") -> bytes:
    return pack_record(b"key", (*SYSTEM, *headers), value)


@pytest.mark.parametrize(
    ("headers", "traced"),
    [
        ((), False),
        ((("traceparent", SAMPLED.encode()),), True),
        ((("traceparent", UNSAMPLED.encode()),), False),
        ((("traceparent", b"00-short-01"),), False),
        ((("traceparent", b""),), False),
        ((("x-traceparent", UNSAMPLED.encode()), ("traceparent", SAMPLED.encode())), True),
        ((("x-traceparent", SAMPLED.encode()),), False),
        ((("x-traceparent", SAMPLED.encode()), ("traceparent", UNSAMPLED.encode())), False),
        ((("other", b"traceparent" + SAMPLED.encode()),), False),
        ((("a", b"b"), ("traceparent", SAMPLED.encode()), ("tracestate", b"v=1")), True),
    ],
)
def test_the_flag_of_the_sender_decides(headers: Sequence[tuple[str, bytes]], traced: bool) -> None:
    for payload in (b"", f"traceparent{SAMPLED}".encode()):
        message = frame(*headers, value=payload)
        assert (asks_for_spans(message) and sampled_context(headers_of(message)) is not None) == traced


class Site:
    """Spans in memory, at most `per_s` a second of `now` (s)."""

    def __init__(self, per_s: int = 1_000) -> None:
        self.now = 0.0
        self._spans, self._registry = InMemorySpanExporter(), CollectorRegistry()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracing = Tracing(provider, per_s, self._registry, lambda: self.now)

    def untraced(self, operation: str) -> float | None:
        return self._registry.get_sample_value("duemq_untraced_messages_total", {"operation": operation})

    def made(self) -> list[ReadableSpan]:
        spans = list(self._spans.get_finished_spans())
        self._spans.clear()
        return spans

    def one(self) -> Any:
        (span,) = self.made()
        return span


def linked(span: Any) -> list[str]:
    return [f"{link.context.trace_id:032x}" for link in span.links]


def test_a_delivery_is_linked_to_the_message_and_no_child_of_it() -> None:
    site, outbox = Site(), Outbox(0, {"orders": 1, "dead": 1})
    observer = TracedObserver(CollectorRegistry(), site.tracing)
    traced = ("traceparent", SAMPLED.encode())
    outbox.keys["orders"] = [make_key(NOW, 1, 0), make_key(NOW, 2, 0)]
    outbox.batches["orders", 3] = [frame(), frame(traced, ("tracestate", b"v=1"))]
    outbox.batches["dead", 0] = [frame(traced)]
    observer.cycle(0, Entry(0, 0, b"", 0), outbox, commands=0, started=NOW, ended=NOW + 7)
    span = site.one()
    assert (span.name, span.kind, span.parent) == ("deliver orders", SpanKind.CLIENT, None)
    assert linked(span) == [TRACE] and span.links[0].context.trace_state["v"] == "1"
    assert f"{span.context.trace_id:032x}" != TRACE
    assert (span.start_time, span.end_time) == (NOW * 1_000_000, (NOW + 7) * 1_000_000)
    assert dict(span.attributes) == {
        "messaging.system": "duemq", "messaging.operation.name": "deliver", "messaging.operation.type": "send",
        "messaging.destination.name": "orders", "messaging.destination.partition.id": "3",
        "messaging.message.id": "A" * 32, "duemq.message.due_ms": NOW,
    }  # fmt: skip


@pytest.mark.parametrize(("per_s", "burst"), [(1, 1), (50, 50), (256, 256), (10_000, 256)])
def test_a_budget_is_full_after_a_second_and_never_beyond(per_s: int, burst: int) -> None:
    budget = SpanBudget(per_s, 100.0)
    assert (budget.take(1_000, 100.0), budget.take(1, 100.0)) == (burst, 0)
    assert budget.take(1_000, 100.0 + 0.5 / per_s) == 0
    assert budget.take(1_000, 100.0 + 1.01 / per_s) == 1
    assert (budget.take(1_000, 9_000.0), budget.take(1, 9_000.0)) == (burst, 0)


def test_no_second_has_more_spans_than_a_budget_and_its_burst() -> None:
    budget, hundredths = SpanBudget(50, 0.0), range(1_000)
    assert sum(budget.take(7, n / 100) for n in hundredths) == 50 + 499


def test_a_cycle_makes_no_more_spans_than_the_budget_has_and_counts_the_others() -> None:
    site, outbox = Site(per_s=10_000), Outbox(0, {"orders": 2})
    outbox.keys["orders"] = [make_key(NOW, n, 0) for n in range(1_000)]
    traced, other = frame(("traceparent", SAMPLED.encode())), frame(("traceparent", UNSAMPLED.encode()))
    outbox.batches |= {("orders", 0): [traced, other] * 100, ("orders", 1): [other, traced] * 300}
    observer = TracedObserver(CollectorRegistry(), site.tracing)
    observer.cycle(0, Entry(0, 0, b"", 0), outbox, commands=0, started=NOW, ended=NOW)
    assert (len(site.made()), site.untraced("deliver")) == (256, 400 - 256)
    site.now += 0.01
    observer.cycle(0, Entry(0, 0, b"", 0), outbox, commands=0, started=NOW, ended=NOW)
    assert len(site.made()) == 100
    assert (site.untraced("deliver"), site.untraced("schedule"), site.untraced("cancel")) == (144 + 300, 0, 0)


def test_requests_beyond_the_budget_are_done_without_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(per_s=5)
    gateway = gateway_of(site, monkeypatch)

    async def send(caller: Carrier | None, *drafts: Draft) -> None:
        CALLER.set(caller)
        assert len(await gateway.send(drafts)) == len(drafts)

    others = [f"00-{n:032x}-{PARENT}-01" for n in range(1, 10)]
    asyncio.run(send(CALL, *map(draft, others[:3]), draft(UNSAMPLED)))
    assert len(linked(site.one())) == 3 and site.untraced("schedule") == 0
    asyncio.run(send(CALL, *map(draft, others[3:8])))
    assert len(linked(site.one())) == 2 and site.untraced("schedule") == 3
    asyncio.run(send(CALL, draft()))
    asyncio.run(send(None, draft(SAMPLED)))
    asyncio.run(send(None, draft()))
    assert (site.made(), site.untraced("schedule")) == ([], 5)

    async def cancel() -> None:
        CALLER.set(CALL)
        assert len(await gateway.change(CANCEL, ["m1"])) == 1

    asyncio.run(cancel())
    assert (site.made(), site.untraced("cancel")) == ([], 1)
    site.now = 0.2
    asyncio.run(cancel())
    assert site.one().name == "cancel"


def test_a_context_that_only_looks_sampled_makes_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    site, outbox = Site(), Outbox(0, {"orders": 1})
    wrong = f"00-{'x' * 32}-{PARENT}-01"
    asyncio.run(gateway_of(site, monkeypatch).send([draft(wrong)]))
    outbox.keys["orders"] = [make_key(NOW, 1, 0)]
    outbox.batches["orders", 0] = [frame(("traceparent", wrong.encode()))]
    observer = TracedObserver(CollectorRegistry(), site.tracing)
    observer.cycle(0, Entry(0, 0, b"", 0), outbox, commands=0, started=NOW, ended=NOW)
    assert site.made() == []


def gateway_of(site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> TracedGateway:
    """One whose work is done by nobody."""

    async def send(self: CommandGateway, drafts: Sequence[Draft]) -> list[Any]:
        if error is not None:
            raise error
        return [Receipt(f"m{n}", "scheduled", draft.topic, NOW) for n, draft in enumerate(drafts)]

    async def change(
        self: CommandGateway,
        kind: int,
        refs: Sequence[str],
        due: Any = 0,
        *,
        times: bool = False,
        terms: Any = None,
        by: str = "",
    ) -> list[ChangeOutcome]:
        return [ChangeOutcome(ref, Answer.OK) for ref in refs]

    monkeypatch.setattr(CommandGateway, "send", send)
    monkeypatch.setattr(CommandGateway, "change", change)
    gateway = TracedGateway.__new__(TracedGateway)
    gateway._tracing = site.tracing
    return gateway


def draft(parent: str | None = None, topic: str = "orders") -> Draft:
    pairs = [] if parent is None else [("traceparent", parent.encode())]
    count, packed = pack_headers(pairs)
    return Draft(topic, b"", NOW, header_count=count, headers=packed)


CALL = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}


def test_what_is_sent_is_a_child_of_who_asked_and_linked_to_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    gateway = gateway_of(site, monkeypatch)

    async def send(caller: Carrier | None, *drafts: Draft) -> None:
        CALLER.set(caller)
        await gateway.send(drafts)

    asyncio.run(send(None, draft(), draft(UNSAMPLED)))
    assert site.made() == []
    asyncio.run(send(None, draft(SAMPLED)))
    span = site.one()
    assert (span.name, span.kind, f"{span.context.trace_id:032x}") == ("schedule orders", SpanKind.SERVER, TRACE)
    assert (f"{span.parent.span_id:016x}", span.attributes["messaging.message.id"]) == (PARENT, "m0")
    asyncio.run(send(CALL, draft(SAMPLED), draft(SAMPLED), draft(topic="other")))
    span = site.one()
    assert (span.name, f"{span.parent.span_id:016x}", linked(span)) == ("schedule", "b" * 16, [TRACE])
    assert span.attributes["messaging.batch.message_count"] == 3
    asyncio.run(send(CALL, draft()))
    assert site.one().links == ()


def test_an_error_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    gateway = gateway_of(site, monkeypatch, Unavailable("the log is away"))

    async def send() -> None:
        CALLER.set(CALL)
        await gateway.send([draft()])

    with pytest.raises(Unavailable):
        asyncio.run(send())
    span = site.one()
    assert (span.attributes["error.type"], span.status.is_ok) == ("Unavailable", False)


def test_a_cancel_is_a_child_of_who_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    gateway = gateway_of(site, monkeypatch)

    async def change(caller: Carrier | None, kind: int, *refs: str) -> None:
        CALLER.set(caller)
        await gateway.change(kind, refs)

    asyncio.run(change(None, CANCEL, "m1"))
    asyncio.run(change(CALL, MOVE, "m1"))
    assert site.made() == []
    asyncio.run(change(CALL, CANCEL, "m1"))
    span = site.one()
    assert (span.name, span.attributes["messaging.message.id"], span.attributes["duemq.answer"]) == (
        "cancel",
        "m1",
        "ok",
    )
    asyncio.run(change(CALL, CANCEL, "m1", "m2"))
    assert site.one().attributes["messaging.batch.message_count"] == 2


def test_a_request_knows_the_trace_of_its_caller_and_no_other() -> None:
    known: list[Carrier | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        known.append(CALLER.get())

    async def ask(*parents: str) -> None:
        traced = TracedCalls(cast(Any, app))
        for parent in parents:
            headers = [(b"traceparent", parent.encode())] if parent else []
            await traced({"type": "http", "headers": headers}, cast(Any, None), cast(Any, None))

    asyncio.run(ask(SAMPLED, "", UNSAMPLED, "x"))
    assert known == [{"traceparent": SAMPLED}, None, None, None]
