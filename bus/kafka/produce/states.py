"""The states of a committer on Kafka, as a table."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from duemq.model.state_table import StateTable


class CommitterState(StrEnum):
    NEW = "new"
    OPEN = "open"  # the predecessor is fenced, and no transaction is open
    COMMITTING = "committing"
    ENDED = "ended"  # further commits are refused, and the producer is stopping


class CommitterEvent(StrEnum):
    FENCED_PREDECESSOR = "fenced_predecessor"
    BEGIN = "begin"
    COMMITTED = "committed"
    END = "end"  # closed, replaced, fenced, cut off, or a commit failed (its outcome may be unknown)


COMMITTER: Final = StateTable(
    "committer",
    CommitterState.NEW,
    {
        (CommitterState.NEW, CommitterEvent.FENCED_PREDECESSOR): CommitterState.OPEN,
        (CommitterState.OPEN, CommitterEvent.BEGIN): CommitterState.COMMITTING,
        (CommitterState.COMMITTING, CommitterEvent.COMMITTED): CommitterState.OPEN,
        (CommitterState.NEW, CommitterEvent.END): CommitterState.ENDED,
        (CommitterState.OPEN, CommitterEvent.END): CommitterState.ENDED,
        (CommitterState.COMMITTING, CommitterEvent.END): CommitterState.ENDED,
        (CommitterState.ENDED, CommitterEvent.END): CommitterState.ENDED,
    },
)
