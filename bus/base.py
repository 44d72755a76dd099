"""The interface to a log: topics of partitions of frames, and one transaction per cycle.

Plugs: `memory` (tests), `embedded` (a durable log in RocksDB), `kafka`. All pass `tests/contract/test_bus.py`. A plug
guarantees:

* `append` returns when the frames are durable; offsets of one partition are dense for committed frames on the
  embedded plugs (a broker may leave gaps) and always ascend in append order.
* `Committer.commit` is atomic over all its topics: readers see all of it or nothing, ever.
* A newer committer of the same name fences the older one: its `commit` raises `Fenced` and leaves no trace.
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
    """A topic refuses its part of a commit, and nothing of the commit was written; or it cannot be created.

    `reason`: a code (see `cluster/topics/topic_states.py`); the message explains it in a sentence.
    """

    scope = FailureScope.TOPIC

    def __init__(self, topic: str, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.topic, self.reason = topic, reason


class TopicRefused(Fatal):
    """One of duemq's own topics is misconfigured. The message says how and what to do."""


def wall_clock() -> int:
    """The default clock of a log, epoch ms; tests replace it."""
    return int(time.time() * 1000)


class AppendResult(NamedTuple):
    """Where the frames of one partition landed.

    They have consecutive offsets from `first_offset` on, except that a broker may append them in several parts: `parts`
    holds, for each part after the first, the position of its first frame in the batch, and its offset.
    """

    first_offset: int
    timestamp: int
    parts: tuple[tuple[int, int], ...] = ()

    def offset(self, position: int) -> int:
        """The offset of the frame at this position of the batch."""
        frame_offset = self.first_offset + position
        for start, offset in self.parts:
            if start > position:
                break
            frame_offset = offset + position - start
        return frame_offset


Batches = Mapping[Partition, Sequence[bytes]]
AppendResults = Mapping[Partition, AppendResult]


class PartlyAppended(LogFailed):
    """One part of an append is, or may be, in the log, and another is not. By partition: `results` and `failures`."""

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

    `max_frame_bytes`: larger frames are refused; None = no limit. `needs_key`: a record without a key is refused,
    because the topic is compacted. `trouble`: the partitions that accept nothing now, with the reason. `is_new`:
    created so recently that its first record may take a second, and delay others that are sent with it.
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
    """A topic and its partitions: for each, the first kept offset and the next one to assign.

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
    """The topic, if it has this many partitions. Raises TopicRefused."""
    if info.partitions != partitions:
        raise TopicRefused(
            f"topic {info.name!r} has {info.partitions} partitions and must have {partitions}, one per shard: "
            "the number of shards is chosen once. Set shards to it, or name the brokers of this cluster."
        )
    return info


class GroupPosition(NamedTuple):
    """The position of a consumer group in a partition. `topic`: its name for the members. `note`: the text stored with
    the offset: ranges of later offsets that are done."""

    topic: str
    offset: int
    note: str = ""


class BlockingTransaction(NamedTuple):
    """An open transaction that blocks the readers of a partition: they get nothing after its first record.

    `producer_id`: -1 if brokers do not tell it; `transactional_id`: empty if they do not. `offset`: of the first
    record; `since`: epoch ms.
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
        """True as soon as the topic (or partition) grew since the last call, or since the subscription was made.

        False after `timeout_s` without growth. Raises the bus's error once it failed or was closed.
        """
        ...

    def wake(self) -> None:
        """Wake the reader as if there were more."""
        ...

    def close(self) -> None: ...


TopicNames = Callable[[], Set[str] | None]
"""Returns the names known at the time of the call; None if unknown."""


def unknown_topics() -> None:
    """No names are known."""


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
    """What a master needs to read commands. The methods are those of `Bus`."""

    async def read(
        self, topic: str, partition: int, offset: int, max_records: int, max_bytes: int = 8 << 20
    ) -> list[StoredRecord]: ...
    def reach(self, topic: str, partition: int) -> int: ...
    def subscribe(self, topic: str, partition: int | None = None) -> Subscription: ...


class Bus(Protocol):
    """A log with topics."""

    @property
    def ahead(self) -> LogView:
        """The log for a master, which may see frames before they are durable: a commit that follows from them is not
        durable before they are. A plug that shows none of these is its own view."""
        ...

    async def append(self, batches: Batches, *, for_answer: bool = False) -> AppendResults:
        """Append outside of any cycle; durable when it returns. On the embedded plugs atomic over all batches.

        `for_answer`: the caller then waits for the cycle that answers these commands, so both may share a sync.

        Raises UnknownTopic (nothing was written), StoreFailed or DiskFull (outcome unknown), or PartlyAppended.
        """
        ...

    async def read(
        self, topic: str, partition: int, offset: int, max_records: int, max_bytes: int = 8 << 20
    ) -> list[StoredRecord]:
        """Committed frames from `offset` on (from the first kept one if that is later); at least one if there is any.

        `max_bytes` bounds the sum of the frames' bytes, except that the first one is always returned. A plug may return
        fewer than the limits allow. An unknown topic has no frames.
        """
        ...

    async def end_offset(self, topic: str, partition: int) -> int:
        """The next offset a reader will see (0 for an unknown topic), read from the log."""
        ...

    async def sure_end(self, topic: str, partition: int, *, committed: bool = True) -> int:
        """Return `end_offset`, guaranteed not to come from a part of the log that fell behind. May take seconds.

        With `committed` False it is after all acknowledged frames, even those that readers cannot see yet. Raises
        LogFailed if the end is not certain.
        """
        ...

    async def start_offset(self, topic: str, partition: int) -> int:
        """The first offset that is kept (0 for an unknown topic), read from the log."""
        ...

    async def first_since(self, topic: str, partition: int, timestamp: int) -> int:
        """The offset of the first frame appended at this time (epoch ms) or later; the end if there is none."""
        ...

    def reach(self, topic: str, partition: int) -> int:
        """Frames below this offset can be read without waiting. Readers of a remote log lag slightly behind its end.

        So to read to the end, call `end_offset`, and read until `reach` gets there.
        """
        ...

    def subscribe(self, topic: str, partition: int | None = None) -> Subscription: ...

    @property
    def marker_offsets(self) -> int:
        """How many offsets the end of a commit uses in a partition after its frames."""
        ...

    async def committer(self, name: str, written: TopicNames = unknown_topics) -> Committer:
        """Become the only writer under this name: from now on older committers of it are fenced.

        `written`: the topics that committers of this name wrote to recently. A shared log checks them for transactions
        that a broker left open.
        """
        ...

    def topic_state(self, topic: str) -> TopicState | None:
        """What a topic accepts, without a request: for a topic in use, at most some seconds old.

        None if the topic was not checked recently, and if it does not exist.
        """
        ...

    async def look_up_topics(self, topics: Collection[str]) -> None:
        """Ask the log about these topics: afterwards `topic_state` knows those that exist. Raises StoreFailed."""
        ...

    async def create_topic(self, topic: str, partitions: int) -> TopicInfo:
        """Create the topic (1..65535 partitions), or return the existing one unchanged.

        Raises Rejected for an impossible name, WriteRefused if the log does not create it.
        """
        ...

    async def create_log(
        self, topic: str, partitions: int, *, expires: bool = True, in_ids: bool = False, vital: bool = True
    ) -> TopicInfo:
        """Create one of duemq's own topics with the settings that it needs: frames stamped by the log's clock, long
        retention.

        `expires`: a shared log may drop frames by age, as configured; else only `trim` removes any. `in_ids`: ids
        contain its offsets: after a restore the embedded log continues after a gap, so that no offset is assigned
        twice. Raises TopicRefused if it exists with other settings.

        `vital`: shards depend on it. Any other topic is recreated if it is deleted. If such a topic is wrong or cannot
        be created, nothing is raised: `misfits` reports it, and the result has no offsets.
        """
        ...

    def incarnation(self, topic: str) -> int:
        """How often a topic of duemq that is not vital was recreated or truncated since this bus was opened. Each time,
        its readers start again at its beginning."""
        ...

    async def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Ids (hex) that tell topics apart from earlier ones of the same name; empty for a log without ids. Raises
        LogFailed."""
        ...

    def misfits(self) -> Mapping[str, str]:
        """duemq's own topics that are misconfigured or unusable, each with a sentence."""
        ...

    def blocked(self) -> Mapping[Partition, BlockingTransaction]:
        """Partitions of duemq's own topics whose readers have waited for seconds, with the blocking transaction."""
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
        """Free the space of trimmed frames, and return when it is free. For a log on this machine's disk."""
        ...

    async def checkpoint(self, into: Path) -> bool:
        """Link all durable data into a new folder on the same disk, which can be opened as a separate log.

        False, without a folder, if this plug keeps nothing on this machine's disk.
        """
        ...

    def disk_bytes(self) -> int:
        """The log's current size on this machine's disk."""
        ...

    def trouble(self) -> str | None:
        """Why the whole log is unusable now, in a sentence; None if part of it works."""
        ...

    def troubles(self) -> Mapping[Partition, str]:
        """The partitions of duemq's own topics that cannot be read now, each with a sentence."""
        ...

    async def clock_offset_ms(self) -> float:
        """The log's clock minus this machine's, as far as it is certain; 0 if both are the same.

        Raises Unavailable, and the errors of creating a topic for it.
        """
        ...

    async def get_consumer_cursor(self, topic: str, consumer: CursorName) -> bytes | None:
        """The last cursor that a named consumer stored."""
        ...

    async def set_consumer_cursor(self, topic: str, consumer: CursorName, cursor: bytes) -> None:
        """An empty cursor deletes the stored one."""
        ...

    async def begin_group(self, topic: str, group: str, offsets: Sequence[int]) -> None:
        """Set the positions of a group of consumers (`client/consumer/`) in a topic, one offset per partition.

        Without offsets, for a missing topic: each partition begins at its start. Raises Rejected `group_at_work` if the
        group has members and the log accepts positions only from them.
        """
        ...

    async def group_position(self, topic: str, group: str, partition: int) -> GroupPosition | None:
        """The position of a consumer group in a partition; None if it has stored none."""
        ...

    async def readers(self, topic: str) -> list[str]:
        """The readers that stored a position in the topic, if the log knows them: `group NAME`, or `consumer NAME` over
        HTTP, sorted; 200 at most."""
        ...

    async def close(self) -> None: ...
