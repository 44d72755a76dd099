"""The ledger: one entry for each committed cycle of a shard, with the cycle's answers, and barriers between masters.

Together with the commands, the ledger is the whole history of a shard. An entry is JSON, so that an operator can read
it with any Kafka tool. The answers to consecutive commands are run-length coded (a bulk cancel of 10,000 is one run).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

import orjson

from duemq.model.errors import CorruptStore
from duemq.model.messages.key import KEY_BYTES, LOWEST

ENTRY_FORMAT = 2
MAX_LISTED_TOPICS = 256
_FORMATS = (1, ENTRY_FORMAT)  # format 1 has no barriers, and entries without `end_horizon`, `lost` and `base`


class Answer(IntEnum):
    """The ledger's answer to one command. A command without an answer was a plain schedule, and was accepted."""

    OK = 0  # cancelled, moved, delivered now, redriven or purged
    DUPLICATE = 1  # the name exists with the same content
    CONFLICT = 2  # the name exists with other content
    DELIVERED = 3  # too late: the message has been delivered
    CANCELLED_BEFORE = 4
    UNKNOWN = 5  # there is no such message, or no longer
    DEAD = 6  # the message has become a dead letter
    NOT_DEAD = 7  # a redrive of a message that is not a dead letter
    ACCEPTED = 8  # a named schedule that is the first of its name
    MALFORMED = 9  # an unreadable record, which has become a dead letter
    FILE_PENDING = 10  # a file to import: a later entry will have its outcome
    FILE_DUPLICATE = 11  # a file with the same content is pending or imported
    REPEATED = 12  # the same step of the same job made this change before
    CHANGED_BEFORE = 13  # another step of the same job, perhaps a forgotten step, has changed this message
    EXHAUSTED = 14  # no redrive is left, or the message would be due after its expiry
    PURGED = 15  # a redrive or purge of a message that was purged from the dead letters


@dataclass(frozen=True, slots=True)
class DeferredMessage:
    """A due message that the cycle did not deliver. It was moved from `key` to `to`, or (None) became a dead letter."""

    key: bytes
    to: bytes | None
    attempt: int
    reason: str = ""


class FileDecision(NamedTuple):
    """The outcome for the file in the command at `offset`: `rows` messages are pending, and the checksum of their keys
    is `checksum`; or the file was refused for a `reason`, and there are no messages."""

    offset: int
    rows: int
    checksum: int
    reason: str = ""


class OutcomeCounts(NamedTuple):
    """The numbers of messages since the shard began: accepted = delivered + cancelled + dead + pending."""

    accepted: int = 0
    delivered: int = 0
    cancelled: int = 0
    dead: int = 0


NO_OUTCOMES = OutcomeCounts()


@dataclass(frozen=True, slots=True)
class Entry:
    """One committed cycle.

    `number` counts entries from 0; `applied` (V): commands below this offset are applied; `cursor` (T): pending
    messages with keys up to this one are delivered; `at`: the time of the commit, epoch ms. `pending` and `checksum`:
    the number of pending messages and the checksum of their keys, which every replica must have after this entry.
    `outcomes`: how many messages the shard ever accepted, and how they ended; the numbers always add up. `horizon`:
    messages that were due before this time (epoch ms) are unknown from the next entry on, so replicas may forget them.
    `end_horizon`: the same for messages that were cancelled or died before this time, whenever they were due.
    `imported`: files whose messages are pending from this entry on, and files that were refused.

    `lost`: the commands that the log dropped before any master had read them, as offsets [first, end); None for none.
    `base`: if an operator declared the replica at entry `base` to be right (`duemq shard recover`), this entry follows
    that one, and the entries between the two are void. Else None.

    `named`: for each change by name, by the offset of its command, the first key of the changed message. The id in the
    answer is made from this key. Only the first changes of a cycle are listed, and none that was answered UNKNOWN.
    Entries from an older version of duemq list none.

    `topics`: the other topics that the cycle wrote to. A broker may have left the cycle's transaction open there. None
    if they are not listed: there were more than MAX_LISTED_TOPICS, or an older version of duemq committed the cycle.
    """

    number: int
    applied: int
    cursor: bytes
    at: int
    answers: Mapping[int, Answer] = field(default_factory=dict)
    deferred: tuple[DeferredMessage, ...] = ()
    pending: int = 0
    checksum: int = 0
    outcomes: OutcomeCounts = NO_OUTCOMES
    horizon: int = 0
    imported: tuple[FileDecision, ...] = ()
    end_horizon: int = 0
    lost: tuple[int, int] | None = None
    base: int | None = None
    named: Mapping[int, bytes] = field(default_factory=dict)
    topics: tuple[str, ...] | None = None
    _encoded: list[bytes] = field(default_factory=list, init=False, repr=False, compare=False)

    def encode(self) -> bytes:
        """The entry as bytes. It is encoded only once, because a master writes it both to the ledger and to its
        store."""
        if not self._encoded:
            self._encoded.append(self._encode())
        return self._encoded[0]

    def _encode(self) -> bytes:
        document: dict[str, object] = {
            "v": ENTRY_FORMAT, "n": self.number, "applied": self.applied, "cursor": self.cursor.hex(), "at": self.at,
            "pending": self.pending, "checksum": f"{self.checksum:016x}", "fates": list(self.outcomes),
        }  # fmt: skip
        if self.horizon:
            document["horizon"] = self.horizon
        if self.end_horizon:
            document["end_horizon"] = self.end_horizon
        if self.answers:
            document["answers"] = _runs(self.answers.items())
        if self.deferred:
            document["deferred"] = [
                [d.key.hex(), d.to.hex() if d.to else None, d.attempt, d.reason] for d in self.deferred
            ]
        if self.imported:
            document["adopted"] = [[a.offset, a.rows, f"{a.checksum:016x}", a.reason] for a in self.imported]
        if self.lost is not None:
            document["lost"] = self.lost
        if self.base is not None:
            document["base"] = self.base
        if self.named:
            document["named"] = [[offset, key.hex()] for offset, key in self.named.items()]
        if self.topics is not None and len(self.topics) <= MAX_LISTED_TOPICS:
            document["topics"] = self.topics
        return orjson.dumps(document)

    @staticmethod
    def decode(raw: bytes) -> Entry:
        """Raises CorruptStore for bytes that are not an entry in a format that this version knows."""
        try:
            d = orjson.loads(raw)
            if d["v"] not in _FORMATS:
                raise CorruptStore(f"ledger entry of format {d['v']}, this duemq reads format {ENTRY_FORMAT}")
            answers = {first + i: Answer(code) for first, count, code in d.get("answers", ()) for i in range(count)}
            deferred = tuple(
                DeferredMessage(bytes.fromhex(key), bytes.fromhex(to) if to else None, attempt, reason)
                for key, to, attempt, reason in d.get("deferred", ())
            )
            imported = tuple(
                FileDecision(offset, rows, int(total, 16), reason)
                for offset, rows, total, reason in d.get("adopted", ())
            )
            return Entry(
                d["n"], d["applied"], _key(d["cursor"]), d["at"], answers, deferred, d["pending"],
                int(d["checksum"], 16), OutcomeCounts(*d["fates"]), d.get("horizon", 0), imported,
                d.get("end_horizon", 0), _pair(d.get("lost")), d.get("base"),
                {offset: _key(key) for offset, key in d.get("named", ())},
                tuple(map(str, d["topics"])) if "topics" in d else None,
            )  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptStore(f"not a ledger entry: {raw[:200]!r}") from error


@dataclass(frozen=True, slots=True)
class Barrier:
    """A record that a new master appends before it reads the ledger. `entry`: the last entry that the master had then;
    `at`: epoch ms. `cluster`: the id of its cluster, empty if an older version of duemq wrote the barrier.

    The append is fenced and goes to the partition's true leader, so no entry of an older master can come after the
    barrier. A reader that reaches the barrier has read every earlier entry.
    """

    entry: int
    at: int
    cluster: str = ""

    def encode(self) -> bytes:
        document: dict[str, object] = {"v": ENTRY_FORMAT, "barrier": self.entry, "at": self.at}
        if self.cluster:
            document["cluster"] = self.cluster
        return orjson.dumps(document)


def read_ledger(raw: bytes) -> Entry | Barrier:
    """Decode a record of the ledger. Raises CorruptStore as `Entry.decode` does."""
    if raw.startswith(_BARRIER_START):
        try:
            d = orjson.loads(raw)
            return Barrier(int(d["barrier"]), int(d["at"]), str(d.get("cluster", "")))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptStore(f"not a barrier of the ledger: {raw[:200]!r}") from error
    return Entry.decode(raw)


_BARRIER_START = b'{"v":%d,"barrier":' % ENTRY_FORMAT


def _key(text: str) -> bytes:
    key = bytes.fromhex(text)
    if len(key) != KEY_BYTES:
        raise ValueError("key")
    return key


def _pair(value: list[int] | None) -> tuple[int, int] | None:
    if value is None:
        return None
    start, end = value
    return int(start), int(end)


def _runs(answers: Iterable[tuple[int, Answer]]) -> list[tuple[int, int, int]]:
    """The runs of consecutive commands with the same answer, as (first offset, number of commands, answer)."""
    runs = []
    for (_, code), run in groupby(enumerate(answers), lambda item: (item[1][0] - item[0], item[1][1])):
        offsets = [offset for _, (offset, _) in run]
        runs.append((offsets[0], len(offsets), int(code)))
    return runs


START = Entry(number=-1, applied=0, cursor=LOWEST, at=0)
