"""The topics that a shard recently wrote to, from its ledger: a transaction may still be open in them."""

from __future__ import annotations

from collections.abc import Set
from sys import intern
from typing import Final

from duemq.model.log.ledger import Entry

_KEPT_MS: Final = 3_600_000
_MAX_TOPICS: Final = 1_000


class WrittenTopics:
    """The topics that were written to in the hour before the newest entry. `last`: the newest entry at the start."""

    def __init__(self, last: Entry) -> None:
        self.written_at: dict[str, int] = {}  # topic -> time (ms), in ascending order of time
        self._at = last.at
        self._incomplete_until = -1  # topics written to before this time (ms) may be missing
        if last.number >= 0:
            self.record(last)

    def record(self, entry: Entry) -> None:
        at, written_at = entry.at, self.written_at
        if entry.topics is None:
            self._incomplete_until = at + _KEPT_MS
        for topic in entry.topics or ():
            written_at.pop(topic, None)
            written_at[intern(topic)] = at
        while written_at and (next(iter(written_at.values())) < at - _KEPT_MS or len(written_at) > _MAX_TOPICS):
            dropped_at = written_at.pop(next(iter(written_at)))
            self._incomplete_until = max(self._incomplete_until, dropped_at + _KEPT_MS)
        self._at = at

    def names(self) -> Set[str] | None:
        """The names of these topics; None if some may be missing."""
        return None if self._incomplete_until > self._at else self.written_at.keys()
