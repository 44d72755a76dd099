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
    """The parts of a producer. `name`: of its committer; `own`: duemq's own topics, all others are for messages.

    `on_coordinator_lost` is called as soon as the producer knows.
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
    """One transaction after the other. After any error it may only be stopped. `client`: its AIOKafkaClient."""

    client: Any

    @property
    def producer_id(self) -> int:
        """The brokers' current id of it; -1 before the start."""
        ...

    async def connect(self) -> None:
        """Do the part of `start` that changes nothing at the brokers. An error only ends it: `start` meets it again."""
        ...

    async def start(self) -> None:
        """Fence the previous producer and make the broker end its transaction. Raises KafkaError and OSError."""
        ...

    async def begin(self) -> None:
        """Raises KafkaError and LogFailed."""
        ...

    async def send(self, batches: BatchesByPartition, patience_s: float) -> Positions:
        """Raises Fenced, WriteRefused or LogFailed; the most telling of several failures.

        A topic that is silent for `patience_s` while duemq's own topics have answered is refused.
        """
        ...

    async def commit(self) -> None:
        """Raises KafkaError, OSError, AssertionError, LogFailed: the outcome may be unknown."""
        ...

    async def abort(self) -> None:
        """Abort if possible at once; else the next producer's start does it.

        Raises KafkaError, OSError, AssertionError and LogFailed.
        """
        ...

    async def end_open(self, partitions: Collection[Partition], *, commits: bool) -> None:
        """End open transactions in these partitions with a transaction without records. Raises KafkaError."""
        ...

    def coordinator(self) -> object | None:
        """The connection to it; None if there is none now."""
        ...

    async def stop(self, *, failed: bool) -> None:
        """Take at most a few seconds, and raise nothing. With `failed`, unsent batches are dropped."""
        ...
