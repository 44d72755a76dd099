"""The port between a consumer and the log that it works on.

Plugs: `kafka/log.py` (a group of Kafka's) and, inside a server on the embedded log, `relay/embedded/log.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from duemq.client.consumer.done_ranges import Ranges
from duemq.client.consumer.message import Message, Record
from duemq.client.consumer.retry.policy import Dead, Wait


class Partition(NamedTuple):
    """A partition of a topic. aiokafka's `TopicPartition` is the same tuple, and equals it."""

    topic: str
    partition: int


class FetchPosition(NamedTuple):
    """`commit`: the first message that is not done; `pull`: the next to be fetched; `done`: what is done behind
    `commit`."""

    commit: int
    pull: int
    done: Ranges = ()


@dataclass(frozen=True, slots=True, order=True)
class Mismatch:
    """A member that does not subscribe to what most do. `member` is its id, which begins with its client id (or its
    `group_instance_id`). Tags as a filter is written; None: not subscribed to the topic."""

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
    """Where messages come from and where positions are kept."""

    async def start(self) -> None: ...

    async def pull(self, timeout_ms: int, most: int) -> dict[Partition, list[Any]]:
        """Up to `most` records (`message.Record`) by partition, after `timeout_ms` at the latest."""
        ...

    def hold(self, partitions: Collection[Partition]) -> None:
        """Pull nothing of these, and of all others again."""
        ...

    def rewind(self, partition: Partition, offset: int) -> bool:
        """Have the next pull of a partition start at an offset that was pulled before. False if the source has no place
        of the partition now."""
        ...

    async def idle(self) -> None:
        """Called now and then while nothing is pulled."""
        ...

    def partitions(self) -> frozenset[Partition]:
        """The partitions this member has: none while they move."""
        ...

    async def position(self, partition: Partition) -> int | None:
        """Where the next pull of a partition starts; None where that is not known just now."""
        ...

    def done(self, partition: Partition) -> Ranges:
        """What is done behind the place where a partition is pulled from first, as it was stored."""
        ...

    def end(self, partition: Partition) -> int | None:
        """Behind the last record of a partition, as far as it is known without asking."""
        ...

    def log_id(self, topic: str) -> str:
        """What tells the topic's log from any other that had its name, or has it elsewhere: where it is the same, so is
        the record at an offset. Empty where that is not known."""
        ...

    async def save(self, places: Mapping[Partition, FetchPosition]) -> Collection[Partition]:
        """Store these. Gives the partitions whose places are durable now."""
        ...

    async def let_go(self) -> None:
        """Let go of all partitions, as if they went to other members."""
        ...

    async def stop(self) -> None: ...


@runtime_checkable
class Watcher(Protocol):
    """Is told what comes and what has ended, in any partition. What is taken away with a partition ends in silence."""

    def pulled(self, partition: Partition, log_id: str, offsets: Sequence[int], start: int) -> None:
        """Records come, in the order of their offsets, before their handlers. Below `start` none comes again. `log_id`:
        see `MessageSource`."""
        ...

    def ended(self, record: Record) -> None:
        """A handler has done it, or the log has it for a retry or among the dead letters."""
        ...


class ConsumerLog(Protocol):
    """One group's side of a log."""

    async def open(
        self,
        topics: Mapping[str, str],
        retry: Sequence[str],
        gained: PartitionsMoved,
        lost: PartitionsMoved,
        report_mismatches: Callable[[Sequence[Mismatch]], None],
    ) -> MessageSource:
        """The source, not started. `topics`: with the tags of each; `retry`: topics that are read from their first
        message on. Raises Rejected where this log cannot serve a consumer, and errors of the log."""
        ...

    async def send_back(self, message: Message, to: Wait | Dead, error: str) -> Wait | Dead:
        """Send a message back, or to the dead letters. Returns which, once that is durable. Tries until it succeeds; a
        cancel ends it, with an unknown outcome."""
        ...

    async def renew(self, topics: Sequence[str]) -> None:
        """Keep the positions of a group without members from being forgotten by their age. Does nothing to a group that
        has any. Raises errors of the log."""
        ...

    async def close(self) -> None:
        """Takes a few seconds at most, also where the log is away."""
        ...
