"""The interface to a log: topics, partitions and frames, with one transaction per cycle.

Implementations ("plugs"): `memory` (for tests), `embedded` (a durable log in RocksDB) and `kafka`. All pass
`tests/contract/test_bus.py`. A plug guarantees:

* `append` returns when the frames are durable. Offsets in a partition ascend in append order. The committed frames of a
  partition have consecutive offsets, except on Kafka: brokers may leave gaps.
* `Committer.commit` is atomic across all its topics: readers see either all of it or nothing.
* A newer committer with the same name fences the older one: its `commit` raises `Fenced` and leaves no trace.
* Readers see committed frames only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Protocol

from duemq.model.errors import DuemqError, Fatal, LogFailed, Rejected, Unavailable
from duemq.model.messages.names import CursorName
from duemq.model.messages.record import Partition, StoredRecord
from duemq.model.scope import FailureScope


class UnknownTopic(Rejected):
    """An append to a topic, or a partition of one, that was never created."""

    scope = FailureScope.TOPIC

    def __init__(self, topic: str, partition: int | None = None) -> None:
        detail = (
            f"there is no topic {topic!r}" if partition is None else f"topic {topic!r} has no partition {partition}"
        )
        super().__init__("unknown_topic", detail, "topic")
        self.topic = topic


class WriteRefused(Unavailable):
    """A topic refuses its part of a commit, and no part of the commit was written; or the topic cannot be created.

    `reason`: a code (see `cluster/topics/topic_states.py`); the error message explains it in a sentence.
    """

    scope = FailureScope.TOPIC

    def __init__(self, topic: str, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.topic, self.reason = topic, reason


class TopicRefused(Fatal):
    """One of duemq's own topics is misconfigured. The error message says what is wrong and how to fix it."""


def wall_clock() -> int:
    """The default clock of a log, epoch ms; tests replace it."""
    return int(time.time() * 1000)


class AppendResult(NamedTuple):
    """The offsets that one partition's frames were given.

    The offsets are consecutive from `first_offset` on, unless a broker appended the frames in several parts. For each
    part after the first, `parts` has the position of the part's first frame in the batch, and that frame's offset.
    """

    first_offset: int
    timestamp: int
    parts: tuple[tuple[int, int], ...] = ()

    def offset(self, position: int) -> int:
        """The offset of the frame at this position in the batch."""
        frame_offset = self.first_offset + position
        for start, offset in self.parts:
            if start > position:
                break
            frame_offset = offset + position - start
        return frame_offset


Batches = Mapping[Partition, Sequence[bytes]]
AppendResults = Mapping[Partition, AppendResult]


class PartlyAppended(LogFailed):
    """One part of an append is, or may be, in the log, and another is not. `results` and `failures` are by
    partition."""

    scope = FailureScope.MESSAGE

    def __init__(self, results: AppendResults, failures: Mapping[Partition, DuemqError]) -> None:
        first = next(iter(failures.values()))
        super().__init__(f"a part of an append is in the log or may be, another is not: {first}")
        self.results, self.failures = results, failures


NO_LEADER, TOO_FEW_REPLICAS = "no_leader", "too_few_replicas"
_TROUBLE = {
    NO_LEADER: "no broker leads partition",
    TOO_FEW_REPLICAS: "fewer replicas are in sync than min.insync.replicas asks for in partition",
}


def _some(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")


@dataclass(frozen=True, slots=True)
class TopicState:
    """What a topic accepts, as the log last reported it.

    `max_frame_bytes`: larger frames are refused; None = no limit. `needs_key`: the topic is compacted, so it refuses
    records without a key. `trouble`: the partitions that currently accept nothing, with the reasons. `is_new`: the
    topic was created so recently that its first record may take a second, and delay other records sent with it.
    """

    partitions: int
    max_frame_bytes: int | None = None
    needs_key: bool = False
    trouble: Mapping[int, str] = field(default_factory=dict)
    is_new: bool = False

    @property
    def trouble_text(self) -> str:
        """A sentence about the partitions in trouble; empty if there are none."""
        by_reason: dict[str, list[int]] = {}
        for partition, reason in self.trouble.items():
            by_reason.setdefault(reason, []).append(partition)
        return "; ".join(f"{_TROUBLE.get(why, why)}: {_some(numbers)}" for why, numbers in by_reason.items())


@dataclass(frozen=True)
class TopicInfo:
    """A topic and its partitions. For each partition: the first offset that is still kept, and the next offset to
    assign.

    `trouble`: why the topic cannot be read now. Then its offsets are unknown, and both tuples are empty.
    """

    name: str
    partitions: int
    start_offsets: tuple[int, ...]
    end_offsets: tuple[int, ...]
    trouble: str = ""

    @property
    def records(self) -> int:
        return sum(self.end_offsets) - sum(self.start_offsets)


def log_that_fits(info: TopicInfo, partitions: int) -> TopicInfo:
    """Return the topic if it has this many partitions. Raises TopicRefused."""
    if info.partitions != partitions:
        raise TopicRefused(
            f"topic {info.name!r} has {info.partitions} partitions and must have {partitions}, one per shard: "
            "the number of shards is chosen once. Set shards to it, or name the brokers of this cluster."
        )
    return info


class GroupPosition(NamedTuple):
    """The position of a consumer group in a partition. `topic`: the topic's name as the group's members know it.
    `note`: the text stored with the offset, which lists the ranges of later offsets that are done."""

    topic: str
    offset: int
    note: str = ""


class BlockingTransaction(NamedTuple):
    """An open transaction that blocks the readers of a partition: they get nothing from its first record on.

    `producer_id`: -1 if the brokers do not report it; `transactional_id`: empty if they do not report it. `offset`: the
    offset of the transaction's first record; `since`: when the transaction began, epoch ms.
    """

    producer_id: int
    transactional_id: str
    offset: int
    since: int

    def sentence(self, partition: int) -> str:
        producer = f"producer {self.producer_id}" if self.producer_id >= 0 else "a producer that brokers do not name"
        if self.transactional_id:
            producer += f" (transactional id {self.transactional_id!r})"
        began = datetime.fromtimestamp(self.since / 1000, UTC).isoformat(timespec="seconds")
        return (
            f"partition {partition} is not read after offset {self.offset}: a transaction of {producer} is open there "
            f"since {began}. It ends by its time-out (transaction.timeout.ms), or by kafka-transactions.sh abort"
        )


class Subscription(Protocol):
    """Wakes one reader."""

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Return True as soon as the topic (or partition) has grown since the last call, or since the subscription was
        made.

        Returns False after `timeout_s` without growth. Raises the bus's error once the bus has failed or was closed.
        """
        ...

    def wake(self) -> None:
        """Wake the reader as if the topic had grown."""
        ...

    def close(self) -> None: ...


TopicNames = Callable[[], Set[str] | None]
"""Returns the topic names known at the time of the call; None if they are unknown."""


def unknown_topics() -> None:
    """The default for `TopicNames`: no names are known."""


class Committer(Protocol):
    """The one writer of a shard's cycles."""

    async def commit(self, batches: Batches) -> AppendResults:
        """Append all batches atomically; returns once they are durable.

        Raises Fenced (a newer committer exists): nothing was written; WriteRefused (also for a missing topic): nothing
        was written, and the committer must be discarded; or StoreFailed or DiskFull: the outcome is unknown until a new
        committer has opened and the ledger has been read again.
        """
        ...

    async def close(self) -> None: ...


class LogView(Protocol):
    """The part of a log that a master needs for reading commands. The methods are those of `Bus`."""

    async def read(
        self, topic: str, partition: int, offset: int, max_records: int, max_bytes: int = 8 << 20
    ) -> list[StoredRecord]: ...
    def reach(self, topic: str, partition: int) -> int: ...
    def subscribe(self, topic: str, partition: int | None = None) -> Subscription: ...


class Bus(Protocol):
    """A log with topics."""

    @property
    def ahead(self) -> LogView:
        """The log for a master, which may see frames before they are durable: a commit based on them never becomes
        durable before they do. A plug that never shows such frames returns itself."""
        ...

    async def append(self, batches: Batches, *, for_answer: bool = False) -> AppendResults:
        """Append outside any cycle; the frames are durable when it returns. Except on Kafka, it is atomic across all
        batches.

        `for_answer`: the caller will next wait for the cycle that answers these commands, so the append and the cycle
        may share a sync.

        Raises UnknownTopic (nothing was written), StoreFailed or DiskFull (outcome unknown), or PartlyAppended.
        """
        ...

    async def read(
        self, topic: str, partition: int, offset: int, max_records: int, max_bytes: int = 8 << 20
    ) -> list[StoredRecord]:
        """Committed frames from `offset` on (or from the first kept offset if that is later); at least one frame if
        there is any.

        `max_bytes` limits the total size of the frames, but the first frame is always returned. A plug may return fewer
        than the limits allow. An unknown topic has no frames.
        """
        ...

    async def end_offset(self, topic: str, partition: int) -> int:
        """The next offset that a reader will see (0 for an unknown topic), read from the log."""
        ...

    async def sure_end(self, topic: str, partition: int, *, committed: bool = True) -> int:
        """Return `end_offset`, guaranteed not to come from a part of the log that has fallen behind. May take seconds.

        With `committed` False, the result lies after all acknowledged frames, including those that readers cannot see
        yet. Raises LogFailed if the end is not certain.
        """
        ...

    async def start_offset(self, topic: str, partition: int) -> int:
        """The first offset that is still kept (0 for an unknown topic), read from the log."""
        ...

    async def first_since(self, topic: str, partition: int, timestamp: int) -> int:
        """The offset of the first frame appended at this time (epoch ms) or later; the end offset if there is none."""
        ...

    def reach(self, topic: str, partition: int) -> int:
        """Frames below this offset can be read without waiting. Readers of a remote log lag slightly behind its end.

        So to read to the end, call `end_offset`, then read until `reach` returns at least that offset.
        """
        ...

    def subscribe(self, topic: str, partition: int | None = None) -> Subscription: ...

    @property
    def marker_offsets(self) -> int:
        """How many offsets the end of a commit uses up in each partition, after the frames."""
        ...

    async def committer(self, name: str, written: TopicNames = unknown_topics) -> Committer:
        """Become the only writer under this name: older committers with this name are fenced from now on.

        `written`: the topics that committers with this name wrote to recently. A shared log checks them for
        transactions that a broker left open.
        """
        ...

    def topic_state(self, topic: str) -> TopicState | None:
        """What a topic accepts, without a request to the log. For a topic in use, the answer is at most a few seconds
        old.

        None if the topic does not exist or was not checked recently.
        """
        ...

    async def look_up_topics(self, topics: Collection[str]) -> None:
        """Ask the log about these topics: afterwards `topic_state` has an answer for those that exist. Raises
        StoreFailed."""
        ...

    async def create_topic(self, topic: str, partitions: int) -> TopicInfo:
        """Create the topic (1..65535 partitions), or return the existing one unchanged.

        Raises Rejected for an impossible name, WriteRefused if the log does not create the topic.
        """
        ...

    async def create_log(
        self, topic: str, partitions: int, *, expires: bool = True, in_ids: bool = False, vital: bool = True
    ) -> TopicInfo:
        """Create one of duemq's own topics with the settings that it needs: frames stamped by the log's clock, long
        retention.

        `expires`: a shared log may drop frames by age, as configured; otherwise only `trim` removes frames. `in_ids`:
        message ids contain this topic's offsets, so after a restore the embedded log leaves a gap, and no offset is
        assigned twice. Raises TopicRefused if the topic exists with other settings.

        `vital`: shards depend on this topic. A topic that is not vital is recreated if it is deleted. If it is
        misconfigured or cannot be created, nothing is raised: `misfits` reports it, and the result has no offsets.
        """
        ...

    def incarnation(self, topic: str) -> int:
        """How often a topic was recreated or truncated since this bus was opened, for duemq's own topics that are not
        vital. Each time, the topic's readers start again at its beginning."""
        ...

    async def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Ids (hex) that tell topics apart from earlier topics with the same name; empty for a log without ids. Raises
        LogFailed."""
        ...

    def misfits(self) -> Mapping[str, str]:
        """duemq's own topics that are misconfigured or unusable, each with a sentence that explains the problem."""
        ...

    def blocked(self) -> Mapping[Partition, BlockingTransaction]:
        """Partitions of duemq's own topics whose readers have been blocked for seconds, each with the blocking
        transaction."""
        ...

    async def topic(self, topic: str) -> TopicInfo | None: ...

    async def topics(self) -> list[TopicInfo]: ...

    async def trim(self, topic: str, partition: int, before_offset: int) -> None:
        """Drop frames below this offset. Space is freed in the background."""
        ...

    async def trim_older_than(self, topic: str, timestamp: int) -> None:
        """Drop frames appended before this time (epoch ms); a plug may keep some a little longer."""
        ...

    async def reclaim(self) -> None:
        """Free the space of trimmed frames, and return once it is free. Only for a log on this machine's disk."""
        ...

    async def checkpoint(self, into: Path) -> bool:
        """Hard-link all durable data into a new folder on the same disk, which can be opened as a separate log.

        Returns False and creates no folder if this plug keeps nothing on this machine's disk.
        """
        ...

    def disk_bytes(self) -> int:
        """The log's current size on this machine's disk, in bytes."""
        ...

    def trouble(self) -> str | None:
        """Why the whole log is currently unusable, in a sentence; None if any part of it works."""
        ...

    def troubles(self) -> Mapping[Partition, str]:
        """The partitions of duemq's own topics that currently cannot be read, each with a sentence that explains
        why."""
        ...

    async def clock_offset_ms(self) -> float:
        """The log's clock minus this machine's clock, ms, reduced to the part that is certain; 0 if they are the same
        clock.

        Raises Unavailable, and the errors of creating the topic used to measure it.
        """
        ...

    async def get_consumer_cursor(self, topic: str, consumer: CursorName) -> bytes | None:
        """The last cursor that a named consumer stored; None if there is none."""
        ...

    async def set_consumer_cursor(self, topic: str, consumer: CursorName, cursor: bytes) -> None:
        """Store a named consumer's cursor; an empty cursor deletes the stored one."""
        ...

    async def begin_group(self, topic: str, group: str, offsets: Sequence[int]) -> None:
        """Set the positions of a consumer group (`client/consumer/`) in a topic, one offset per partition.

        Without offsets, for a topic that does not exist yet, the group will read each partition from its start. Raises
        Rejected `group_at_work` if the group has members and the log accepts positions only from them.
        """
        ...

    async def group_position(self, topic: str, group: str, partition: int) -> GroupPosition | None:
        """The position of a consumer group in a partition; None if the group has stored none."""
        ...

    async def readers(self, topic: str) -> list[str]:
        """The readers that stored a position in the topic, if the log can list them; sorted, at most 200: `group NAME`,
        or `consumer NAME` for a consumer over HTTP."""
        ...

    async def close(self) -> None: ...
