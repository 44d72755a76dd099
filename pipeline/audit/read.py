"""What an audit reads, and in which order: so that nothing it sees contradicts itself only because time goes on.

1. The ledger up to where it ends: with that it is fixed up to which cycle each shard is audited.
2. The topics and dead letters up to where they end after that, once open transactions are over: all that these
   cycles delivered is in there, and what is in there from later cycles is told by its time.
3. The buffer up to where it ends after that: every id that was seen in a record is of a command before it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from aiokafka.structs import TopicPartition

from duemq.model.timing import format_ms
from duemq.model.topics.group_topics import DEAD
from duemq.pipeline.errors import BadInput
from duemq.pipeline.logs.logs import BUFFER, DEAD_LETTERS, LEDGER
from duemq.pipeline.logs.ranges import Logs, Retention, TopicRange

MARGIN_MS = 60_000
"""How far a record's time may be from that of its ledger entry: they are of one transaction, and times of brokers and
nodes."""
FOREVER = 2**63 - 1
ALL = ("*",)
"""For `topics`: all of the Kafka, whether or not duemq delivers to them."""
_BACK = 64  # offsets: of entries, marks of their transactions, and aborted ones
_PATIENCE_S = 20.0  # longer than the transactions of duemq's cycles may last


@dataclass(frozen=True, slots=True)
class TopicRanges:
    """What is read of the topics that messages are delivered to.

    `known_from`: per topic the time (epoch ms) up to which records may have been dropped by what is configured, or -1
    where none were.
    `all_read`: whether that are all topics of the cluster. `notes`: what was left out, in sentences.
    """

    ranges: Mapping[str, TopicRange]
    known_from: Mapping[str, int]
    letters: TopicRange | None
    letters_from: int | None
    all_read: bool
    notes: tuple[str, ...]

    @property
    def anywhere_from(self) -> int | None:
        """The `known_from` of messages whose topic is not known; None where not all topics were read."""
        return max(self.known_from.values(), default=-1) if self.all_read else None

    def within(self, topics: Collection[str]) -> TopicRanges:
        """These topics only."""
        others = self.ranges.keys() - set(topics)
        if not others:
            return self
        notes = [note for note in self.notes if note.partition(":")[0].partition(" ")[0] not in others]
        return replace(
            self, all_read=False,
            ranges={topic: one for topic, one in self.ranges.items() if topic not in others},
            known_from={topic: at for topic, at in self.known_from.items() if topic not in others},
            notes=(*notes, f"not read, for duemq delivers nothing there: {_some(sorted(others))}"),
        )  # fmt: skip


def ledger_range(logs: Logs, since: int | None, until: int | None) -> TopicRange:
    """The range of the ledger, with some entries before it for the base (`window.py`).

    Raises BadInput where there is no duemq on this Kafka, or the range is none.
    """
    if since is not None and until is not None and since >= until:
        raise BadInput("the range ends before it begins")
    with logs.connected():
        there = logs.topics()
        for topic in (BUFFER, LEDGER):
            if topic not in there:
                raise BadInput(f"there is no topic {topic}: no duemq has run on this Kafka")
        ledger = logs.ranges([LEDGER], since, until)[LEDGER]
    return ledger.within({p: start - _BACK for p, start in ledger.starts.items()}, {})


def topic_ranges(
    logs: Logs, topics: Sequence[str], since: int | None, until: int | None, dead_letters: str = DEAD_LETTERS
) -> TopicRanges:
    """`topics`: those to read; none, or `ALL`, for all there are. To be asked after the ledger's range is fixed."""
    with logs.connected():
        there = logs.topics()
        existing = [topic for topic in there if not topic.startswith("duemq.") and topic != dead_letters]
        reading = existing if tuple(topics) in ((), ALL) else list(topics)
        if missing := sorted(set(reading) - set(existing)):
            raise BadInput(f"there is no topic {missing[0]} to deliver to")
        left_out = sorted(set(existing) - set(reading))
        if dead_letters in there:
            reading = [*reading, dead_letters]
        elif dead_letters != DEAD_LETTERS:
            raise BadInput(f"there is no topic {dead_letters} for dead letters")
        begin = None if since is None else since - MARGIN_MS
        ends, still_open = logs.settled_ends(reading, _PATIENCE_S)
        ranges = logs.ranges(reading, begin, None if until is None else until + MARGIN_MS)
        ranges = {topic: one.within({}, _least(one, ends)) for topic, one in ranges.items()}
        firsts = logs.first_times(reading)
        policies = logs.retention(reading)
        purges = logs.purges(topic for topic, one in ranges.items() if one.cut)
        now = time.time_ns() // 1_000_000
    notes = [
        f"{where}: a transaction is open since before this audit; what it holds back is not read"
        for where in still_open
    ]
    held_back = {where.rsplit(" ", 1)[0] for where in still_open}
    known_from = {}
    for topic, one in ranges.items():
        policy = policies.get(topic)
        # Purges by an older duemq, and by consumers, have left no mark.
        trusted = None if topic.startswith(DEAD) else policy
        purged = purges.get(topic)
        times = (dropped_before(trusted, firsts.get((topic, partition)), now, purged) for partition in one.cut)
        known_from[topic] = FOREVER if topic in held_back else max(times, default=-1)
        if policy is not None and policy.compacts:
            known_from[topic] = FOREVER
            notes.append(f"{topic} is compacted: whether a record was there cannot be known")
        elif one.cut and (begin is None or known_from[topic] >= begin):
            notes.append(_dropped(topic, known_from[topic], trusted))
    letters = ranges.pop(dead_letters, None)
    letters_from = known_from.pop(dead_letters, None)
    if left_out:
        notes.append(f"not read: {_some(left_out)}")
    return TopicRanges(ranges, known_from, letters, letters_from, not left_out, tuple(notes))


def dropped_before(policy: Retention | None, first: int | None, now: int, purged: int | None = None) -> int:
    """A time (epoch ms) that all records are older than which brokers have dropped of a partition, of one where some
    are missing. `FOREVER` where it cannot be told.

    `policy`: of its topic, None where we may not ask; `first`: the time of the first record that is left, None for
    none; `purged`: when a job of duemq last began to purge the topic. What is configured says more than what is left: a
    partition that nobody has written to for long is empty, and of one that is hardly written to only the newest records
    are left.
    """
    if policy is None or (policy.ms < 0 and policy.bytes < 0):  # somebody has deleted them
        return FOREVER if first is None else first
    bounds = []
    if purged is not None:
        bounds.append(purged + MARGIN_MS if first is None else min(purged + MARGIN_MS, first))
    if policy.ms >= 0:
        oldest = now - policy.ms + MARGIN_MS
        # What is there still lies behind all that was dropped, in the order of the log.
        bounds.append(oldest if first is None else min(oldest, first + MARGIN_MS))
    if policy.bytes > 0 and first is not None:  # a limit of size leaves as much as it says
        bounds.append(first)
    if policy.bytes == 0:
        bounds.append(FOREVER if first is None else first)
    return max(bounds, default=FOREVER)


def _dropped(topic: str, known_from: int, policy: Retention | None) -> str:
    if known_from == FOREVER:
        return f"{topic}: old records were dropped; whether they were there cannot be known"
    limits = [] if policy is None else [
        f"{name}={value}" for name, value in (("retention.ms", policy.ms), ("retention.bytes", policy.bytes))
        if value >= 0
    ]  # fmt: skip
    by = f" ({', '.join(limits)})" if limits else ""
    return (
        f"{topic}: records from before {format_ms(known_from)} may have been dropped{by}; whether they were there "
        "cannot be known"
    )


def _least(one: TopicRange, ends: Mapping[TopicPartition, int]) -> dict[int, int]:
    return {p: min(end, ends.get(TopicPartition(one.topic, p), end)) for p, end in one.ends.items()}


def _some(topics: Collection[str], most: int = 8) -> str:
    listed = list(topics)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more topics" if len(listed) > most else "")
