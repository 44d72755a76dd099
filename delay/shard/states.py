"""The states of a shard on one node, as a table."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from duemq.model.state_table import StateTable


class ShardState(StrEnum):
    FOLLOWING = "following"  # a replica that applies the ledger, whether it is current or far behind
    TAKING_OVER = "taking_over"  # elected, with its predecessor fenced: it follows the ledger up to its barrier
    LEADING = "leading"  # the master: it runs cycles
    REBASING = "rebasing"  # this replica is becoming the truth, by an operator's order
    REBUILDING = "rebuilding"  # the store is closed, and a peer's replica is being copied
    STOPPED = "stopped"  # the node has stopped working on it, because its data must not be trusted
    CLOSED = "closed"  # stopped while the store was closed


class ShardEvent(StrEnum):
    GIVEN = "given"  # the election gave the shard to this node
    CURRENT = "current"  # it has followed the ledger up to its barrier
    LOST = "lost"  # the election took it away, it was fenced, or the log or a file failed
    ASKED_TO_REBASE = "asked_to_rebase"
    REBASED = "rebased"  # the rebase ended; if it failed, the operator's request stays open
    OUTDATED = "outdated"  # older than the start of the ledger, or damaged
    REOPENED = "reopened"  # the store is open again, with a peer's replica or, if no peer had one, with its own
    FAILED = "failed"  # wheel and store differ, or an unexpected error


SHARD: Final = StateTable(
    "shard",
    ShardState.FOLLOWING,
    {
        (ShardState.FOLLOWING, ShardEvent.GIVEN): ShardState.TAKING_OVER,
        (ShardState.TAKING_OVER, ShardEvent.CURRENT): ShardState.LEADING,
        (ShardState.TAKING_OVER, ShardEvent.LOST): ShardState.FOLLOWING,
        (ShardState.LEADING, ShardEvent.LOST): ShardState.FOLLOWING,
        (ShardState.FOLLOWING, ShardEvent.ASKED_TO_REBASE): ShardState.REBASING,
        (ShardState.REBASING, ShardEvent.REBASED): ShardState.FOLLOWING,
        (ShardState.FOLLOWING, ShardEvent.OUTDATED): ShardState.REBUILDING,
        (ShardState.REBUILDING, ShardEvent.REOPENED): ShardState.FOLLOWING,
        (ShardState.FOLLOWING, ShardEvent.FAILED): ShardState.STOPPED,
        (ShardState.REBUILDING, ShardEvent.FAILED): ShardState.CLOSED,
    },
)
