"""Whether a process is ready and alive, in words that may be public.

They mention only shards, states and duemq's own topics.

Sentences with paths, topics and addresses are only in `/v1/cluster` and in the log output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple


class Reason(StrEnum):
    """Why a process or a shard is not ready."""

    # reasons of a process
    STARTING = "starting"
    STOPPING = "stopping"
    REOPENING = "reopening"
    LOG_LOST = "log_lost"
    CLOCK_WRONG = "clock_wrong"
    UNFIT = "unfit"
    NO_NODE = "no_node"
    KEYS_UNKNOWN = "keys_unknown"
    # reasons of a process or a shard
    CATCHING_UP = "catching_up"
    LEDGER_UNREADABLE = "ledger_unreadable"
    # reasons of a shard
    LOG_UNREADABLE = "log_unreadable"
    NO_MASTER = "no_master"
    STUCK = "stuck"
    BLOCKED = "blocked"
    BEHIND = "behind"
    LAGS = "lags"
    REBUILDING = "rebuilding"
    WAITS_FOR_FILE = "waits_for_file"
    FILE_WORK_FAILS = "file_work_fails"
    FAILED = "failed"
    STOPPED = "stopped"


SENTENCES: Final[Mapping[Reason, str]] = {
    Reason.STARTING: "it starts",
    Reason.STOPPING: "it stops",
    Reason.REOPENING: "its store or log failed and is opened again",
    Reason.LOG_LOST: "its log is out of reach",
    Reason.CLOCK_WRONG: "its clock is out of bounds, or not compared yet",
    Reason.UNFIT: "shards cannot be led from here",
    Reason.NO_NODE: "no delay node is ready: messages are accepted, but not delivered",
    Reason.KEYS_UNKNOWN: "it is not known yet who may call",
    Reason.CATCHING_UP: "catching up with the ledger",
    Reason.LEDGER_UNREADABLE: "the ledger cannot be read",
    Reason.LOG_UNREADABLE: "its part of the log cannot be read",
    Reason.NO_MASTER: "no node is its master",
    Reason.STUCK: "it makes no progress",
    Reason.BLOCKED: "its log is not read on: a transaction of another client of Kafka is open there",
    Reason.BEHIND: "this replica is behind the log, or damaged, and waits for a peer to copy",
    Reason.LAGS: "this replica is far behind the ledger",
    Reason.REBUILDING: "this replica is replaced by a copy of a peer's",
    Reason.WAITS_FOR_FILE: "this replica waits for an imported file",
    Reason.FILE_WORK_FAILS: "work on its files fails and is tried again",
    Reason.FAILED: "it failed and is opened again",
    Reason.STOPPED: "it is stopped: what this replica holds is wrong",
}


class ShardTrouble(NamedTuple):
    """Why a shard is in trouble, and the state of its replica in this process (empty if it has no replica).

    `producer`, `since`: for a shard that is blocked, the id of the producer that blocks it (-1: unknown), and since
    when, epoch ms.
    """

    reason: Reason
    state: str = ""
    producer: int | None = None
    since: int | None = None


class Readiness(NamedTuple):
    """`reason` is None if the process is ready. A process can be ready although some `shards` are in trouble, and
    although some of duemq's own `topics` cannot be used or are misconfigured."""

    reason: Reason | None
    shards: Mapping[int, ShardTrouble] = {}
    topics: Sequence[str] = ()

    @property
    def sentence(self) -> str:
        """The reason and all troubles in a sentence; empty if there are none."""
        parts = [] if self.reason is None else [SENTENCES[self.reason]]
        parts += [f"shard {number}: {SENTENCES[trouble.reason]}" for number, trouble in sorted(self.shards.items())]
        parts += [f"topic {topic}: it cannot be used, or is not as it must be" for topic in self.topics]
        return "; ".join(parts)
