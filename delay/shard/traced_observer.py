"""An observer that also traces deliveries. Only a node that traces has one: without, a cycle does nothing for it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from duemq.cluster.tracing.spans import Attributes, Tracing
from duemq.cluster.tracing.trace_context import Carrier, sampled_in_frame
from duemq.delay.core.outbox import Outbox
from duemq.delay.metrics import Observer
from duemq.model.ledger import Entry
from duemq.model.record import unpack_record

_MAX_SPANS = 256  # of a cycle: a batch of spans in memory holds 2,048


class TracedObserver(Observer):
    def __init__(self, registry: CollectorRegistry, tracing: Tracing) -> None:
        super().__init__(registry)
        self._tracing = tracing

    def cycle(self, shard: int, entry: Entry, outbox: Outbox, *, commands: int, started: int, ended: int) -> None:
        super().cycle(shard, entry, outbox, commands=commands, started=started, ended=ended)
        left = _MAX_SPANS
        for (topic, partition), frames in outbox.batches.items():
            if topic not in outbox.keys:
                continue  # dead letters
            for frame in frames:
                if (carrier := sampled_in_frame(frame)) is not None:
                    if not left:
                        return
                    left -= 1
                    self._trace(carrier, topic, partition, frame, started, ended)

    def _trace(self, carrier: Carrier, topic: str, partition: int, frame: bytes, started: int, ended: int) -> None:
        headers = dict(unpack_record(frame).headers[:3])
        attributes: Attributes = {
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": str(partition),
            "messaging.message.id": headers["duemq-id"].decode(),
            "duemq.message.due_ms": int(headers["duemq-due"]),
            "duemq.message.attempt": int(headers["duemq-attempt"]),
        }
        self._tracing.delivered(carrier, attributes, started, ended)
