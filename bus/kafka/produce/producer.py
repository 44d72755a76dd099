"""The transactional producer of a committer. There is one per protocol (ADR 35): `v1` and `v2`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol

from duemq.bus.kafka.options import KafkaOptions
from duemq.bus.kafka.produce.transaction_sends import BatchesByPartition, Positions
from duemq.bus.kafka.requests.wire import Wire
from duemq.bus.kafka.topics.catalog import Catalog
from duemq.model.messages.record import Partition


class ProducerSetup(NamedTuple):
    """What a producer is created from. `name`: the committer's name; `own`: duemq's own topics; all others are for
    messages.

    `on_coordinator_lost` is called as soon as the producer notices the loss.
    """

    name: str
    options: KafkaOptions
    wire: Wire
    catalog: Catalog
    own: Collection[str]
    on_coordinator_lost: Callable[[], None]

    @property
    def transactional_id(self) -> str:
        return self.options.transactional_id(self.name)


class Producer(Protocol):
    """Runs one transaction after another. After any error it may only be stopped. `client`: its AIOKafkaClient."""

    client: Any

    @property
    def producer_id(self) -> int:
        """The producer's current id on the brokers; -1 before the start."""
        ...

    async def connect(self) -> None:
        """Do the part of `start` that changes nothing on the brokers. Errors are not raised, because `start` will raise
        them again."""
        ...

    async def start(self) -> None:
        """Fence the previous producer and make the broker end its transaction. Raises KafkaError and OSError."""
        ...

    async def begin(self) -> None:
        """Begin a transaction. Raises KafkaError and LogFailed."""
        ...

    async def send(self, batches: BatchesByPartition, patience_s: float) -> Positions:
        """Send batches in the transaction. Raises Fenced, WriteRefused or LogFailed; of several failures, the probable
        cause.

        Raises WriteRefused for a topic that is silent for `patience_s` while duemq's own topics have answered.
        """
        ...

    async def commit(self) -> None:
        """Commit the transaction. Raises KafkaError, OSError, AssertionError or LogFailed: the outcome may be
        unknown."""
        ...

    async def abort(self) -> None:
        """Abort if this is possible at once; otherwise the next producer's start ends the transaction.

        Raises KafkaError, OSError, AssertionError and LogFailed.
        """
        ...

    async def end_open(self, partitions: Collection[Partition], *, commits: bool) -> None:
        """End open transactions in these partitions by means of a transaction without records. Raises KafkaError."""
        ...

    def coordinator(self) -> object | None:
        """The connection to the coordinator; None if there is none now."""
        ...

    async def stop(self, *, failed: bool) -> None:
        """Stop within a few seconds, and raise nothing. With `failed`, unsent batches are dropped."""
        ...
