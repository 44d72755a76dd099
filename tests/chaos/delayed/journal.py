"""The answers that a round's senders and committers got, for comparison with the logs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from duemq.bus.base import WriteRefused
from duemq.model.errors import Fenced, OutcomeUnknown, Rejected, Unavailable

Partition = tuple[str, int]


class Outcome(StrEnum):
    """`NOTHING`: it was answered that nothing is written. `FENCED`: that too, because a newer committer exists."""

    DONE = "done"
    NOTHING = "nothing"
    FENCED = "fenced"
    UNKNOWN = "unknown"


class Commit(NamedTuple):
    """One call of `commit`. `term`: which committer it was of; `number`: of the ledger's entry; `offset`: where the
    entry is, as was answered; -1 without an answer."""

    term: str
    number: int
    outcome: Outcome
    offset: int = -1


class SentMessage(NamedTuple):
    """One message that was sent to the buffer. `offset`: its place, from the answer; -1 without an answer."""

    id: str
    topic: str
    due: int
    outcome: Outcome
    offset: int = -1


@dataclass
class Journal:
    commits: list[Commit] = field(default_factory=list)
    sent: list[SentMessage] = field(default_factory=list)
    terms: int = 0
    """How many committers were opened."""

    @property
    def done(self) -> int:
        """How many commits were answered with success."""
        return sum(commit.outcome is Outcome.DONE for commit in self.commits)


def outcome_of(error: BaseException) -> Outcome:
    """What a bus error says about the outcome of the write."""
    if isinstance(error, Fenced):
        return Outcome.FENCED
    if isinstance(error, OutcomeUnknown):
        return Outcome.UNKNOWN
    assert isinstance(error, WriteRefused | Unavailable | Rejected), repr(error)
    return Outcome.NOTHING
