"""Remembers how the last transactions of one transactional id ended, while a partition may still lack their markers.

The coordinator reports how the last transaction ended, but only until the next producer begins. A committer that begins
while a broker is silent cannot end transactions that hang on that broker. So this process's next committer must know
how they were decided.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final, NamedTuple

from duemq.model.messages.record import Partition


class LastTransaction(NamedTuple):
    """The last transaction of a transactional id. `began`: the producer has begun a transaction. `over`: the
    transaction has ended. `commits`: it was, or will be, committed."""

    producer_id: int
    began: bool
    over: bool
    commits: bool


NONE: Final = LastTransaction(-1, began=False, over=True, commits=False)


class Decisions:
    """The decisions about one transactional id, which outlive its committers.

    No record is written to a partition before the partition was seen in order, which means without an open transaction.
    So if it has an open transaction, this is the first one after which it was not seen in order, whatever was decided
    about later transactions. `suspects`: topics with open transactions that no committer has ended yet.
    """

    def __init__(self) -> None:
        self.suspects: set[str] = set()
        self._producer_id, self._newest = NONE.producer_id, NONE.commits
        self._oldest: bool | None = None  # the first decision, for all partitions never seen in order
        self.seen: set[Partition] = set()  # seen in order since the newest decision
        self.first: dict[Partition, bool] = {}  # for partitions that were once seen in order, but not since

    def learn(self, last: LastTransaction, seen: Set[Partition]) -> None:
        """Record the coordinator's answer before the next producer begins. `seen`: the partitions that are in order at
        this time."""
        if last.producer_id != self._producer_id:
            self._producer_id, self._newest, self._oldest = last.producer_id, NONE.commits, None
            self.seen.clear()
            self.first.clear()
        if last.began:
            self._newest = last.commits
            if self._oldest is None:
                self._oldest = last.commits
            for where in self.seen - seen:
                self.first[where] = last.commits
            self.seen.clear()
        self.in_order(seen)

    def in_order(self, partitions: Set[Partition]) -> None:
        """Record that this producer has no open transaction in these partitions."""
        self.seen |= partitions
        for where in self.first.keys() & partitions:
            del self.first[where]

    def commits(self, where: Partition) -> bool:
        """Whether to commit the open transaction in this partition."""
        if where in self.seen or self._oldest is None:
            return self._newest
        return self.first.get(where, self._oldest)
