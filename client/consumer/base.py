"""The port between a consumer and its log.

Implementations: `kafka/log.py` (a Kafka group) and, inside a server on the embedded log, `relay/embedded/log.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from duemq.client.consumer.done_ranges import Ranges
from duemq.client.consumer.message import KafkaRecord, Message
from duemq.client.consumer.retry.policy import DeadLetter, Wait


class Partition(NamedTuple):
    """A partition of a topic. aiokafka's `TopicPartition` has the same fields and compares equal."""

    topic: str
    partition: int


class FetchPosition(NamedTuple):
    """`commit`: the offset of the first message that is not done; `pull`: the next offset to fetch; `done`: ranges
    after `commit` that are done."""

    commit: int
    pull: int
    done: Ranges = ()


@dataclass(frozen=True, slots=True, order=True)
class Mismatch:
    """A topic for which a member's subscription differs from the majority's. `member`: its id, which begins with its
    client id (or its `group_instance_id`). `expected_tags`, `found_tags`: the majority's and the member's tag filter;
    None: not subscribed to the topic."""

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
    """A source of messages, and a store of positions."""

    async def start(self) -> None: ...

    async def pull(self, timeout_ms: int, most: int) -> dict[Partition, list[Any]]:
        """Fetch up to `most` records (`message.KafkaRecord`), by partition. Returns after at most `timeout_ms`."""
        ...

    def hold(self, partitions: Collection[Partition]) -> None:
        """Pull no records from these partitions, and resume all others."""
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
        """The offset at which the next pull of a partition starts; None if it is unknown at present."""
        ...

    def done(self, partition: Partition) -> Ranges:
        """The stored ranges of done messages after the offset at which this member's first pull of the partition
        starts."""
        ...

    def end(self, partition: Partition) -> int | None:
        """The offset after a partition's last record; None if it is not known without a request."""
        ...

    def log_id(self, topic: str) -> str:
        """The id of the topic's log; empty if it is unknown. As long as the id is the same, an offset belongs to the
        same record. A topic with the same name that was recreated, or is in another cluster, has another id."""
        ...

    async def save(self, places: Mapping[Partition, FetchPosition]) -> Collection[Partition]:
        """Store these positions. Returns the partitions whose positions are durable now."""
        ...

    async def let_go(self) -> None:
        """Give up all partitions, as if they were assigned to other members."""
        ...

    async def stop(self) -> None: ...


@runtime_checkable
class Watcher(Protocol):
    """Is notified of records that were pulled or have ended. For a partition that moved to another member, `ended` is
    not called."""

    def pulled(self, partition: Partition, log_id: str, offsets: Sequence[int], start: int) -> None:
        """Records were pulled; called before their handlers. `offsets`: in ascending order. Records below `start` are
        never pulled again. `log_id`: see `MessageSource`."""
        ...

    def ended(self, record: KafkaRecord) -> None:
        """A handler has finished the record, or the log contains it as a retry or a dead letter."""
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
        """Returns the source, which is not started yet. `topics`: the tag filter for each topic. `retry`: topics to
        read from their first message. `gained`, `lost`: called when partitions move. Raises Rejected if this log cannot
        serve a consumer, and the log's errors."""
        ...

    async def send_back(self, message: Message, to: Wait | DeadLetter, error: str) -> Wait | DeadLetter:
        """Send a message back or to the dead letters. Returns the actual outcome, once it is durable. Retries until it
        succeeds; after a cancel, the outcome is unknown."""
        ...

    async def renew(self, topics: Sequence[str]) -> None:
        """Keep the positions of a group without members from expiring. Does nothing if the group has members. Raises
        the log's errors."""
        ...

    async def close(self) -> None:
        """Close the log. Takes a few seconds at most, even if the log is unreachable."""
        ...
