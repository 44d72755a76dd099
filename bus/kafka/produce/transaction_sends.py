"""Waits for the acknowledgements of one transaction's batches, for as long as one topic may delay the others."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Protocol

from duemq.bus.base import WriteRefused
from duemq.bus.kafka.record_batches import RecordBatch
from duemq.bus.kafka.topics.catalog import Catalog
from duemq.model.messages.record import Partition

_LOOK_S = 0.25  # slower sends may wait for a deleted topic, or one without a leader
_GLANCE_S = 0.05  # how often the producer's own state is checked, which is free

BatchesByPartition = dict[Partition, list[RecordBatch]]
Positions = dict[Partition, list[tuple[int, int, int]]]
"""Where every batch landed: its first position, its offset, and the broker's time or -1."""


class TransactionSends(Protocol):
    """The batches of one transaction in flight, each retried forever."""

    async def wait(self, timeout_s: float) -> bool:
        """Whether all of them have ended by then; their outcomes are checked later."""
        ...

    def silent(self) -> list[Partition]:
        """The partitions with unanswered batches."""
        ...

    def has_leaders(self, partitions: Collection[Partition]) -> bool:
        """Whether the producer knows a leader for each of them."""
        ...

    def is_in_doubt(self) -> bool:
        """Whether some were not added to the transaction at the first try."""
        ...


async def until_acknowledged(
    sends: TransactionSends, catalog: Catalog, own: Collection[str], patience_s: float
) -> None:
    """Wait until all have ended. `own`: duemq's own topics.

    Raises WriteRefused for a topic that cannot accept its records, according to the brokers. They are asked every
    `_LOOK_S`, and sooner when the producer is in doubt: it knows no leader (as soon as a broker refuses a batch), or
    partitions are not added to the transaction. A topic that is silent for `patience_s` while duemq's own topics have
    answered is refused.
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
