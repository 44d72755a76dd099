"""How the last transactions of one transactional id were decided, while a partition may still lack their markers.

The coordinator tells how the last transaction ended until the next producer begins. A committer that begins while a
broker is silent cannot mend what hangs there; so the next committer of this process has to know what was decided.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from duemq.bus.base import Partition

_MOST: Final = 4  # transactions; each keeps a set of all partitions


class Last(NamedTuple):
    """The last transaction of an id. `began`: there was one since the producer began. `over`: nothing of it is under
    way. `commits`: or was decided to be."""

    producer_id: int
    began: bool
    over: bool
    commits: bool


NONE: Final = Last(-1, began=False, over=True, commits=False)


@dataclass(slots=True)
class _Decision:
    """`in_order`: partitions that were seen to lack no marker since."""

    commits: bool
    in_order: set[Partition] = field(default_factory=set)


class Decisions:
    """Of one transactional id, from one committer to the next."""

    def __init__(self) -> None:
        self._producer_id, self._newest = NONE.producer_id, NONE.commits
        self._decisions: list[_Decision] = []  # the oldest first

    def learn(self, last: Last) -> None:
        """What the coordinator says before the next producer begins."""
        if last.producer_id != self._producer_id:
            self._producer_id, self._newest = last.producer_id, NONE.commits
            self._decisions.clear()
        if last.began:
            self._newest = last.commits
            self._decisions.append(_Decision(last.commits))
            del self._decisions[:-_MOST]

    def in_order(self, partitions: Iterable[Partition]) -> None:
        """Nothing of this producer is open in these."""
        seen = set(partitions)
        for decision in self._decisions:
            decision.in_order |= seen

    def settled(self) -> None:
        """Nothing of this producer is open in any partition."""
        self._decisions.clear()

    def commits(self, where: Partition) -> bool:
        """Whether what is open there is to be committed: as the first transaction that may have left it was."""
        return next((one.commits for one in self._decisions if where not in one.in_order), self._newest)
