"""How many messages are pending for each topic in one store (docs/adr/0065).

A batch that changes rows also changes these counts. The topic of a message that was cancelled in a delay file without
its row is not known yet: the message is *unread*, and is counted until its row is read. So the sum of all counts is
the number of pending messages in the ledger entry plus the number of unread messages.

    q topic -> count
    q       -> entry number | unread | sum of the counts | through

A store written by an older version has no counts, or outdated ones. The entry number and the number of unread messages
reveal that, and then all messages are counted again, starting at the lowest key. `through`: keys up to this one are
counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

from duemq.model.messages.key import HIGHEST, LOWEST
from duemq.storage.keyspace import TOPIC_COUNT, U64

log = logging.getLogger(__name__)

MAX_LISTED: Final = 10_000
"""How many topics are examined to find the largest ones."""

_STATE = Struct(">qQQ20s")
_TOPICS, _AFTER_TOPICS = TOPIC_COUNT + b"\x01", bytes([TOPIC_COUNT[0] + 1])
_CACHED = 10_000


class TopicCount(NamedTuple):
    """`pending` messages; up to `unread` of them may be cancelled."""

    pending: int
    unread: int


class _Store(Protocol):
    @property
    def path(self) -> Path: ...
    def each(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]: ...
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]: ...


class TopicCounts:
    """Counts by topic. `unread`: returns the store's current number of unread messages."""

    def __init__(self, store: _Store, number: int, pending: int, unread: Callable[[], int]) -> None:
        """`number`, `pending`: those of the store's last ledger entry."""
        self._store, self._unread = store, unread
        self._cache: dict[bytes, int] = {}
        self.faults = 0
        """How often the counts differed from the number of pending messages."""
        self.through, self.total = LOWEST, 0
        """`through`: keys up to this one are counted. `total`: the number of messages counted."""
        raw = store.get_many([TOPIC_COUNT])[0]
        if raw is not None:
            state = _STATE.unpack(raw)
            if state[:2] == (number, unread()) and (state[3] != HIGHEST or state[2] == pending + unread()):
                self.total, self.through = state[2:]
        if pending + unread() == 0:
            self.total, self.through = 0, HIGHEST
        self._is_stale = not self.total  # rows with counts may be left that an older version did not maintain
        self._number, self._pending = number, pending

    @property
    def built(self) -> bool:
        """Whether all messages are counted."""
        return self.through == HIGHEST

    def of(self, topic: str) -> TopicCount | None:
        """The topic's count; None while messages are being counted."""
        if not self.built:
            return None
        (count,) = self._counts([topic.encode()]).values()
        return TopicCount(count, min(count, self._unread()))

    def listed(self) -> dict[str, int] | None:
        """The counts of up to `MAX_LISTED` topics; None while messages are being counted."""
        if not self.built:
            return None
        counts = islice(self._store.each(TOPIC_COUNT, b"\x01"), MAX_LISTED)
        return {} if self._is_stale else {topic.decode(): U64.unpack(count)[0] for topic, count in counts}

    def _counts(self, topics: Collection[bytes]) -> dict[bytes, int]:
        if self._is_stale:
            return dict.fromkeys(topics, 0)
        counts = {topic: self._cache[topic] for topic in topics if topic in self._cache}
        missing = [topic for topic in topics if topic not in counts]
        raws = self._store.get_many([TOPIC_COUNT + topic for topic in missing])
        return counts | {
            topic: 0 if raw is None else U64.unpack(raw)[0] for topic, raw in zip(missing, raws, strict=True)
        }

    # --- changes, each in a batch of the store -------------------------------------------------------------------

    def move(self, batch: Any, changes: Mapping[bytes, int] | None, number: int, pending: int) -> None:
        """Write how a ledger entry changes the counts by topic; None if that is unknown. `number`, `pending`: those of
        the entry. Call it after the batch's unread messages are recorded."""
        self._number, self._pending = number, pending
        self.change(batch, changes)

    def change(self, batch: Any, changes: Mapping[bytes, int] | None, through: bytes | None = None) -> None:
        """Write changes by topic. `through`: keys up to this one are now counted."""
        if self._is_stale:
            batch.delete_range(_TOPICS, _AFTER_TOPICS)
        known = {topic: change for topic, change in (changes or {}).items() if change}
        counts = {topic: count + known[topic] for topic, count in self._counts(known).items()}
        self._is_stale = False
        self.total += sum(known.values())
        self.through = self.through if through is None else through
        due = self._pending + self._unread()
        differ = any(count < 0 for count in counts.values()) or (self.built and self.total != due)
        if changes is not None and differ:
            self._tell_fault(due)
        if changes is None or differ:
            batch.delete_range(_TOPICS, _AFTER_TOPICS)
            self._cache, counts, self.total, self.through = {}, {}, 0, LOWEST
        if len(self._cache) + len(counts) > _CACHED:
            self._cache = {}
        self._cache |= counts
        for topic, count in counts.items():
            if count:
                batch.put(TOPIC_COUNT + topic, U64.pack(count))
            else:
                batch.delete(TOPIC_COUNT + topic)
        batch.put(TOPIC_COUNT, _STATE.pack(self._number, self._unread(), self.total, self.through))

    def _tell_fault(self, due: int) -> None:
        self.faults += 1
        log.error(
            "%s: %d messages are counted by topic, and %d are pending: they are counted again",
            self._store.path, self.total, due, extra={"action": "count"},
        )  # fmt: skip
