"""The port to a log: topics of partitions of frames, and one transaction per cycle.

Plugs: `memory` (tests), `embedded` (a durable log in RocksDB), `kafka`. All pass `tests/contract/test_bus.py`.
What a plug promises:

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
from duemq.model.scope import Scope


class UnknownTopic(Rejected):
    """An append to a topic, or a partition of one, that was never created."""

    scope = Scope.TOPIC

    def __init__(self, topic: str, partition: int | None = None) -> None:
        detail = (
            f"there is no topic {topic!r}" if partition is None else f"topic {topic!r} has no partition {partition}"
        )
        super().__init__("unknown_topic", detail, "topic")
        self.topic = topic


class WriteRefused(Unavailable):
    """A topic does not take its part of a commit, of which nothing was written, or cannot be made.

    `reason`: in a word or two (`cluster/topics/topic_states.py` has those that duemq knows); the message says it in a
    sentence.
    """

    scope = Scope.TOPIC

    def __init__(self, topic: str, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.topic, self.reason = topic, reason


class TopicRefused(Fatal):
    """A topic of duemq's own exists, and is not as it must be. The message says what it is and what to do."""


def wall_clock() -> int:
    """The clock of a log, unless a test brings its own: epoch ms."""
    return int(time.time() * 1000)


class AppendResult(NamedTuple):
    """Where the frames of one partition landed.

    They have consecutive offsets from `first_offset` on, except that a broker may take them in several parts:
    `parts` holds, for each part after the first, the position of its first frame in the batch, and its offset.
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
    """A part of an append is in the log, or may be, and another is not. By partition: `results` and `failures`."""

    scope = Scope.MESSAGE

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
    """What a topic takes, as the log said it last.

    `max_frame_bytes`: larger frames are refused; None = any size is taken. `needs_key`: a record without a key is
    refused, because the topic is compacted. `trouble`: the partitions that take nothing just now, with the reason.
    `is_new`: it was made so lately that the first record may take a second, and hold up others that are sent with it.
    """

    partitions: int
    max_frame_bytes: int | None = None
    needs_key: bool = False
    trouble: Mapping[int, str] = field(default_factory=dict)
    is_new: bool = False

    @property
    def trouble_text(self) -> str:
        """A sentence about the partitions in trouble; empty where there are none."""
        by_reason: dict[str, list[int]] = {}
        for partition, reason in self.trouble.items():
            by_reason.setdefault(reason, []).append(partition)
        return "; ".join(f"{_TROUBLE.get(why, why)}: {_some(numbers)}" for why, numbers in by_reason.items())


@dataclass(frozen=True)
class TopicInfo:
    """A topic and its partitions: for each, the first kept offset and the next one to be given.

    `trouble`: why the topic cannot be read just now. Then its offsets are not known, and both tuples are empty.
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
    """The position of a consumer group in a partition. `topic`: as its members call it. `note`: the text that they
    stored with the offset: ranges of later offsets that are done."""

    topic: str
    offset: int
    note: str = ""


class BlockingTransaction(NamedTuple):
    """An open transaction that keeps the readers of a partition waiting: they get nothing after its first record.

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

        False after `timeout_s` without growth. Raises what the bus raises once it failed or was closed.
        """
        ...

    def wake(self) -> None:
        """Let the reader look now, as if there were more."""
        ...

    def close(self) -> None: ...


TopicNames = Callable[[], Set[str] | None]
"""Names of topics as they are known at the call; None for unknown."""


def unknown_topics() -> None:
    """Say that no name is known."""


class Committer(Protocol):
    """The one writer of a shard's cycles."""

    async def commit(self, batches: Batches) -> AppendResults:
        """Append all batches atomically; returns once they are durable.

        Raises Fenced (a newer committer exists): nothing was written; WriteRefused (also for a topic that is not
        there): nothing was written, and this committer is of no more use; or StoreFailed or DiskFull: the outcome is
        unknown until a new committer was made and the ledger read again.
        """
        ...

    async def close(self) -> None: ...


class Bus(Protocol):
    """A log with topics."""

    async def append(self, batches: Batches) -> AppendResults:
        """Append outside of any cycle; durable when it returns. On the embedded plugs atomic over all batches.

        Raises UnknownTopic (nothing was written), StoreFailed or DiskFull (outcome unknown), or PartlyAppended.
        """
        ...

    async def read(
        self, topic: str, partition: int, offset: int, max_records: int, max_bytes: int = 8 << 20
    ) -> list[StoredRecord]:
        """Committed frames from `offset` on (from the first kept one if that is later); at least one if there is any.

        `max_bytes` bounds the sum of the frames' bytes, except that the first one is always given. A plug may return
        fewer than asked for. An unknown topic has no frames.
        """
        ...

    async def end_offset(self, topic: str, partition: int) -> int:
        """The next offset a reader will see (0 for an unknown topic), as the log itself says it now."""
        ...

    async def sure_end(self, topic: str, partition: int, *, committed: bool = True) -> int:
        """Return `end_offset` as no part of the log that fell behind can have said it. May take seconds.

        With `committed` False it is behind all that was acknowledged, also where no reader sees it yet. Raises
        LogFailed where the end is not known for certain.
        """
        ...

    async def start_offset(self, topic: str, partition: int) -> int:
        """The first offset that is kept (0 for an unknown topic), as the log itself says it now."""
        ...

    async def first_since(self, topic: str, partition: int, timestamp: int) -> int:
        """The offset of the first frame appended at this time (epoch ms) or later; the end where there is none."""
        ...

    def reach(self, topic: str, partition: int) -> int:
        """Frames below this offset can be read without waiting. A remote log's readers lag behind its end a little.

        So one who must read to the end asks `end_offset`, and reads until `reach` is there.
        """
        ...

    def subscribe(self, topic: str, partition: int | None = None) -> Subscription: ...

    @property
    def marker_offsets(self) -> int:
        """How many offsets of a partition the end of a commit takes, after its frames."""
        ...

    async def committer(self, name: str, written: TopicNames = unknown_topics) -> Committer:
        """Become the only writer under this name: from now on older committers of it are fenced.

        `written`: the topics that committers of this name have written to lately. A shared log checks these for
        transactions that a broker left open.
        """
        ...

    def topic_state(self, topic: str) -> TopicState | None:
        """What a topic takes, without asking anybody: of a topic in use what was true some seconds ago at most.

        None where the topic was not looked at lately, and where it is known not to exist.
        """
        ...

    async def look_at(self, topics: Collection[str]) -> None:
        """Ask the log about these topics: afterwards `topic_state` knows those that exist. Raises StoreFailed."""
        ...

    async def create_topic(self, topic: str, partitions: int) -> TopicInfo:
        """Make the topic (1..65535 partitions), or return it as it is when it exists.

        Raises Rejected for a name that no topic can have, WriteRefused where the log does not make it.
        """
        ...

    async def create_log(
        self, topic: str, partitions: int, *, expires: bool = True, in_ids: bool = False, vital: bool = True
    ) -> TopicInfo:
        """Make one of the topics that duemq keeps for itself, as a shared log must be: frames stamped by the log's
        clock, kept for long.

        `expires`: a shared log may drop frames by their age, as it is configured; else only `trim` removes any.
        `in_ids`: its offsets are part of ids: after a restore the embedded log goes on behind a gap, so that no
        offset is given twice. Raises TopicRefused when it exists and does not fit.

        `vital`: shards live on it. Any other is made again if it is deleted. If it does not fit or cannot be made,
        nothing is raised: `misfits` says so, and the answer has no offsets.
        """
        ...

    def incarnation(self, topic: str) -> int:
        """How often a topic of duemq that is not vital was found deleted and made again, or cut short, since this
        bus was opened. Then its readers begin at its start again."""
        ...

    async def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """What tells each from another topic of that name, in hex; nothing of a log without ids. Raises LogFailed."""
        ...

    def misfits(self) -> Mapping[str, str]:
        """Topics of duemq's own that are not as they must be, or cannot be used now, each with a sentence."""
        ...

    def blocked(self) -> Mapping[Partition, BlockingTransaction]:
        """Partitions of duemq's own topics whose readers have waited for seconds, with the transaction in the way."""
        ...

    async def topic(self, topic: str) -> TopicInfo | None: ...

    async def topics(self) -> list[TopicInfo]: ...

    async def trim(self, topic: str, partition: int, before_offset: int) -> None:
        """Frames below this offset are needed no more. Space returns in the background."""
        ...

    async def trim_older_than(self, topic: str, timestamp: int) -> None:
        """Frames appended before this time (epoch ms) are needed no more; a plug may keep some a little longer."""
        ...

    async def reclaim(self) -> None:
        """Have the space of what was trimmed now: comes back when it is free. For a log whose disk is ours."""
        ...

    async def checkpoint(self, into: Path) -> bool:
        """Link all that is durable into a new folder on the same disk, a log of its own that can be opened.

        False where this plug keeps nothing on this machine's disk: then there is no such folder.
        """
        ...

    def disk_bytes(self) -> int:
        """What the log takes on this machine's disk just now."""
        ...

    def trouble(self) -> str | None:
        """Why nothing of the log can be used now, in a sentence; None if some of it can."""
        ...

    def troubles(self) -> Mapping[Partition, str]:
        """The partitions of duemq's own topics that cannot be read now, each with a sentence."""
        ...

    async def clock_offset_ms(self) -> float:
        """The log's clock minus this machine's, the part that is sure; 0 where they are the same.

        Raises Unavailable, and what making a topic for it may raise.
        """
        ...

    async def get_consumer_cursor(self, topic: str, consumer: CursorName) -> bytes | None:
        """The cursor a named consumer stored last."""
        ...

    async def set_consumer_cursor(self, topic: str, consumer: CursorName, cursor: bytes) -> None:
        """An empty cursor deletes the one that is stored."""
        ...

    async def begin_group(self, topic: str, group: str, offsets: Sequence[int]) -> None:
        """Have a group of consumers (`client/consumer/`) go on in a topic at these offsets, one for each partition.

        Without offsets, for a topic that is not there: each partition begins at its start. Raises Rejected
        `group_at_work` where the log takes that from members of the group alone, and it has some.
        """
        ...

    async def group_position(self, topic: str, group: str, partition: int) -> GroupPosition | None:
        """The position of a consumer group in a partition; None if it has stored none."""
        ...

    async def readers(self, topic: str) -> list[str]:
        """The readers that stored a position in the topic, if the log can tell: `group NAME`, or
        `consumer NAME` of one over HTTP, in order; 200 at most."""
        ...

    async def close(self) -> None: ...
