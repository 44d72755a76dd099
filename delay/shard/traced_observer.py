"""An observer that also traces deliveries. Only a node with tracing uses it, so that tracing costs other nodes
nothing."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from duemq.cluster.tracing.trace_context import asks_for_spans, sampled_context
from duemq.cluster.tracing.tracing import Tracing
from duemq.delay.core.outbox import Outbox
from duemq.delay.metrics import Observer
from duemq.model.log.ledger import Entry
from duemq.model.messages.record import headers_of


class TracedObserver(Observer):
    def __init__(self, registry: CollectorRegistry, tracing: Tracing) -> None:
        super().__init__(registry)
        self._tracing = tracing

    def cycle(self, shard: int, entry: Entry, outbox: Outbox, *, commands: int, started: int, ended: int) -> None:
        super().cycle(shard, entry, outbox, commands=commands, started=started, ended=ended)
        for (topic, partition), frames in outbox.batches.items():
            if topic not in outbox.keys:
                continue  # dead letters
            sampled = [frame for frame in frames if asks_for_spans(frame)]
            if sampled:
                for frame in sampled[: self._tracing.take("deliver", len(sampled))]:
                    self._trace(topic, partition, frame, started, ended)

    def _trace(self, topic: str, partition: int, frame: bytes, started: int, ended: int) -> None:
        headers = headers_of(frame)
        if (carrier := sampled_context(headers)) is None:
            return
        system = {name: value or b"" for name, value in headers[:3]}
        attributes: dict[str, str | int | float] = {
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": str(partition),
            "messaging.message.id": system["duemq-id"].decode(),
            "duemq.message.due_ms": int(system["duemq-due"]),
        }
        if system["duemq-attempt"] != b"1":
            attributes["duemq.message.attempt"] = int(system["duemq-attempt"])
        self._tracing.delivered(carrier, attributes, started, ended)
