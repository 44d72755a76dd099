"""The states of a shard on one node, as a table."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from duemq.model.state_table import StateTable


class ShardState(StrEnum):
    FOLLOWING = "following"  # a replica: it applies the ledger, close or far behind
    TAKING_OVER = "taking_over"  # elected, and the predecessor is fenced: follow to the barrier
    LEADING = "leading"  # the master: cycles
    REBASING = "rebasing"  # an operator makes this replica the truth
    REBUILDING = "rebuilding"  # the store is closed, and a peer's replica is being copied
    STOPPED = "stopped"  # the node has given it up, because its data must not be trusted
    CLOSED = "closed"  # stopped while the store was closed


class ShardEvent(StrEnum):
    GIVEN = "given"  # by the election
    CURRENT = "current"  # it has followed the ledger to its barrier
    LOST = "lost"  # taken away, fenced, or the log or a file failed
    ASKED_TO_REBASE = "asked_to_rebase"
    REBASED = "rebased"  # or failed: then the operator's request stays open
    OUTDATED = "outdated"  # older than the start of the ledger, or damaged
    REOPENED = "reopened"  # with a peer's replica, or its own if no peer had one
    FAILED = "failed"  # wheel and store disagree, or an unexpected error


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
