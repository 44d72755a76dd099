"""Waits for the acknowledgements of one transaction's batches, but not for a topic that delays the others for too
long."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Protocol

from duemq.bus.base import WriteRefused
from duemq.bus.kafka.record_batches import RecordBatch
from duemq.bus.kafka.topics.catalog import Catalog
from duemq.model.messages.record import Partition

_LOOK_S = 0.25  # a send that takes longer may be waiting for a deleted topic, or one without a leader
_GLANCE_S = 0.05  # how often the producer's own state is checked, which costs nothing

BatchesByPartition = dict[Partition, list[RecordBatch]]
Positions = dict[Partition, list[tuple[int, int, int]]]
"""For every batch: the position of its first frame, its offset, and the broker's time or -1."""


class TransactionSends(Protocol):
    """The batches of one transaction in flight; each is retried forever."""

    async def wait(self, timeout_s: float) -> bool:
        """Wait; return whether all sends have ended. The caller checks their outcomes later."""
        ...

    def silent(self) -> list[Partition]:
        """The partitions with unacknowledged batches."""
        ...

    def has_leaders(self, partitions: Collection[Partition]) -> bool:
        """Whether the producer knows a leader for each of these partitions."""
        ...

    def is_in_doubt(self) -> bool:
        """Whether some partitions were not added to the transaction at the first try."""
        ...


async def until_acknowledged(
    sends: TransactionSends, catalog: Catalog, own: Collection[str], patience_s: float
) -> None:
    """Wait until all sends have ended. `own`: duemq's own topics.

    Raises WriteRefused for a topic that, according to the brokers, cannot accept its records. The brokers are asked
    every `_LOOK_S`, and sooner when the producer is in doubt: when it knows no leader (because a broker refused a
    batch), or when partitions could not be added to the transaction. Also raises WriteRefused for a topic that is
    silent for `patience_s` while duemq's own topics have answered.
    """
    now = time.monotonic()
    until, look, looks = now + patience_s, now + _LOOK_S, 0
    while not await sends.wait(_GLANCE_S):
        silent = sends.silent()
        now = time.monotonic()
        if now < look and sends.has_leaders(silent) and (looks or not sends.is_in_doubt()):
            continue
        look, looks = now + _LOOK_S, looks + 1
        live_topics = set(await catalog.refresh({topic for topic, _ in silent}))
        for topic, partition in silent:
            if topic in own:
                continue
            metadata = catalog.last(topic)
            if topic not in live_topics or metadata is None:
                raise WriteRefused(topic, "unknown_topic", f"topic {topic!r} does not exist any more")
            if partition in metadata.trouble:
                raise WriteRefused(topic, metadata.trouble[partition], metadata.topic_state.trouble_text)
        if now > until and all(topic not in own for topic, _ in silent):
            topic, partition = silent[0]
            raise WriteRefused(topic, "no_answer", f"partition {partition} of topic {topic!r} does not answer")
