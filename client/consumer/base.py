"""The port between a consumer and its log.

Plugs: `kafka/log.py` (a Kafka group) and, inside a server on the embedded log, `relay/embedded/log.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from duemq.client.consumer.done_ranges import Ranges
from duemq.client.consumer.message import KafkaRecord, Message
from duemq.client.consumer.retry.policy import DeadLetter, Wait


class Partition(NamedTuple):
    """A partition of a topic. aiokafka's `TopicPartition` is the same tuple, and equals it."""

    topic: str
    partition: int


class FetchPosition(NamedTuple):
    """`commit`: the first message that is not done; `pull`: the next one to fetch; `done`: ranges that are done after
    `commit`."""

    commit: int
    pull: int
    done: Ranges = ()


@dataclass(frozen=True, slots=True, order=True)
class Mismatch:
    """A member whose subscription differs from the majority's. `member`: its id, which begins with its client id (or
    its `group_instance_id`). Tags are as in the filter; None: not subscribed to the topic."""

    member: str
    topic: str
    expected_tags: str | None
    found_tags: str | None

    def __str__(self) -> str:
        actual, expected = (
            "does not subscribe" if tags is None else f"subscribes with tags {tags!r}"
            for tags in (self.found_tags, self.expected_tags)
        )
        return f"member {self.member} {actual} to topic {self.topic}; most of the group {expected}"


PartitionsMoved = Callable[[Collection[Partition]], Awaitable[None]]


class MessageSource(Protocol):
    """Source of messages, and store of positions."""

    async def start(self) -> None: ...

    async def pull(self, timeout_ms: int, most: int) -> dict[Partition, list[Any]]:
        """Up to `most` records (`message.KafkaRecord`) by partition, after `timeout_ms` at the latest."""
        ...

    def hold(self, partitions: Collection[Partition]) -> None:
        """Pull no records of these partitions, and records of all others again."""
        ...

    def rewind(self, partition: Partition, offset: int) -> bool:
        """Let the next pull of a partition start at an offset that was pulled before. Returns False if the source has
        no position for the partition at present."""
        ...

    async def idle(self) -> None:
        """Called at intervals while the consumer pulls no records."""
        ...

    def partitions(self) -> frozenset[Partition]:
        """The partitions of this member; empty during a rebalance."""
        ...

    async def position(self, partition: Partition) -> int | None:
        """Where the next pull of a partition starts; None if unknown at present."""
        ...

    def done(self, partition: Partition) -> Ranges:
        """The stored ranges that are done after the offset where this member's first pull of the partition starts."""
        ...

    def end(self, partition: Partition) -> int | None:
        """The offset after a partition's last record, if known without a request."""
        ...

    def log_id(self, topic: str) -> str:
        """Identifies the topic's log. With the same id, an offset has the same record; a topic of the same name that
        was recreated or is in another cluster has another id. Empty if unknown."""
        ...

    async def save(self, places: Mapping[Partition, FetchPosition]) -> Collection[Partition]:
        """Store these positions. Returns the partitions whose positions are durable now."""
        ...

    async def let_go(self) -> None:
        """Give up all partitions, as if other members took them."""
        ...

    async def stop(self) -> None: ...


@runtime_checkable
class Watcher(Protocol):
    """Is told which records were pulled and which have ended. Records of a lost partition end without a call."""

    def pulled(self, partition: Partition, log_id: str, offsets: Sequence[int], start: int) -> None:
        """Records were pulled, in the order of their offsets; called before their handlers. Records below `start` never
        come again. `log_id`: see `MessageSource`."""
        ...

    def ended(self, record: KafkaRecord) -> None:
        """A handler is done with the record, or the log has it as a retry or a dead letter."""
        ...


class ConsumerLog(Protocol):
    """A group's access to a log."""

    async def open(
        self,
        topics: Mapping[str, str],
        retry: Sequence[str],
        gained: PartitionsMoved,
        lost: PartitionsMoved,
        report_mismatches: Callable[[Sequence[Mismatch]], None],
    ) -> MessageSource:
        """The source, not started yet. `topics`: with their tags; `retry`: topics to read from the first message on.
        Raises Rejected if this log cannot serve a consumer, and errors of the log."""
        ...

    async def send_back(self, message: Message, to: Wait | DeadLetter, error: str) -> Wait | DeadLetter:
        """Send a message back, or to the dead letters. Returns the one that happened, once it is durable. Retries until
        it succeeds; after a cancel the outcome is unknown."""
        ...

    async def renew(self, topics: Sequence[str]) -> None:
        """Keep the positions of a group without members from expiring. Does nothing to a group with members. Raises
        errors of the log."""
        ...

    async def close(self) -> None:
        """Takes a few seconds at most, even if the log is unreachable."""
        ...
