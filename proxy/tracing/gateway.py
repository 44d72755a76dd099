"""A gateway that also traces. Only processes with tracing use it, so that tracing costs nothing elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duemq.cluster.backend import Backend
from duemq.cluster.tracing.trace_context import Carrier, asks_for_spans, sampled_context
from duemq.cluster.tracing.tracing import Tracing
from duemq.model.errors import Rejected
from duemq.model.messages.message import CANCEL, Draft
from duemq.model.messages.record import unpack_headers
from duemq.proxy.gateway.base import ChangeOutcome, Receipt
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.proxy.gateway.shard_router import ShardRouter
from duemq.proxy.tracing.traced_calls import CALLER


class TracedGateway(CommandGateway):
    """Makes a span for each `send` and cancel whose caller or message is sampled, within the budget for spans."""

    def __init__(self, backend: Backend, selection: ShardRouter | None, answer_s: float, tracing: Tracing) -> None:
        super().__init__(backend, selection, answer_s)
        self._tracing = tracing

    async def send(self, drafts: Sequence[Draft]) -> list[Receipt | Rejected]:
        caller, sampled = CALLER.get(), [draft for draft in drafts if asks_for_spans(draft.headers)]
        if caller is None and not sampled:
            return await super().send(drafts)
        taken = self._tracing.take("schedule", len(sampled) or 1)
        messages = _distinct(sampled[:taken])
        if not taken or (caller is None and not messages):
            return await super().send(drafts)
        topics = {draft.topic for draft in drafts}
        attributes: dict[str, str | int | float] = {"messaging.operation.type": "send"}
        if len(topics) == 1:
            attributes["messaging.destination.name"] = next(iter(topics))
        if len(drafts) > 1:
            attributes["messaging.batch.message_count"] = len(drafts)
        with self._tracing.request("schedule", caller, messages, attributes) as span:
            answers = await super().send(drafts)
            refused = [answer for answer in answers if isinstance(answer, Rejected)]
            if refused:
                span.set_attribute("error.type", refused[0].code)
            elif len(answers) == 1 and isinstance(answers[0], Receipt):
                span.set_attribute("messaging.message.id", answers[0].id)
            return answers

    async def change(self, kind: int, refs: Sequence[str], *rest: Any, **named: Any) -> list[ChangeOutcome]:
        caller = CALLER.get()
        if caller is None or kind != CANCEL or not self._tracing.take("cancel", 1):
            return await super().change(kind, refs, *rest, **named)
        count = {"messaging.batch.message_count": len(refs)} if len(refs) > 1 else {}
        with self._tracing.request("cancel", caller, (), count) as span:
            outcomes = await super().change(kind, refs, *rest, **named)
            if len(outcomes) == 1:
                (outcome,) = outcomes
                span.set_attribute("messaging.message.id", outcome.id)
                answer = "pending" if outcome.answer is None else outcome.answer.name.lower()
                span.set_attribute("duemq.answer", answer)
            return outcomes


def _distinct(drafts: Sequence[Draft]) -> list[Carrier]:
    """The distinct sampled contexts of messages."""
    contexts: dict[str, Carrier] = {}
    for draft in drafts:
        carrier = sampled_context(unpack_headers(draft.headers, 0, draft.header_count, len(draft.headers)))
        if carrier is not None:
            contexts.setdefault(carrier["traceparent"], carrier)
    return list(contexts.values())
