"""Tracks which messages of a partition are not done, and therefore which position may be stored. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duemq.client.consumer.base import FetchPosition
from duemq.client.consumer.done_ranges import Ranges, behind, contains, done_ranges
from duemq.client.consumer.work.aside import Aside


class OffsetTracker:
    """The state of one partition. Messages are pulled in the order of their offsets, and done in any order.

    Invariant: all offsets below `commit` are done; `commit` itself is not done, or was never pulled.
    """

    __slots__ = ("_done_before", "_open", "aside", "closed", "finished", "pull", "saved", "unsaved")

    def __init__(self, start: int, done_before: Ranges = ()) -> None:
        """`done_before`: messages at or after `start` that were done before this member got the partition."""
        self.pull = start
        """The offset after the last one pulled, or a higher one if only transaction markers lie in between."""
        self.saved = FetchPosition(-1, -1)
        """The position that was last stored."""
        self.finished = 0
        """Number of messages done so far."""
        self.unsaved = 0
        """Number of messages done since the position was last stored: if this process dies, they are delivered
        again."""
        self.closed = False
        """The partition moved to another member: messages in hand whose handlers have not started are dropped."""
        self.aside = Aside()
        """Messages that were read, are not done, and are not in hand."""
        self._open: dict[int, int] = {}  # offset -> timestamp of its record, ascending
        self._done_before = done_before

    def __len__(self) -> int:
        """Number of messages in hand."""
        return len(self._open) - len(self.aside)

    def without_done(self, records: list[Any]) -> list[Any]:
        """The records, without those that were done before this member got the partition."""
        if not self._done_before:
            return records
        return [record for record in records if not contains(self._done_before, record.offset)]

    def pulled(self, times: Mapping[int, int], position: int) -> None:
        """Messages were pulled. `times`: the timestamps of their records, epoch ms, by offset. `position`: the offset
        of the next pull."""
        self._open.update(times)
        self.pull = max(self.pull, position)
        if self._done_before:
            self._done_before = behind(self._done_before, position)

    def done(self, offset: int) -> None:
        """This message was handled, or durably sent back or dead-lettered."""
        self.unsaved += 1
        self.finished += 1
        self._open.pop(offset, None)

    @property
    def stored(self) -> int:
        """How many of the finished messages, in the order in which they were done, are stored as done: they are not
        delivered again."""
        return self.finished - self.unsaved

    @property
    def commit(self) -> int:
        """The first offset that is not done. Metrics read it from another thread."""
        while True:
            try:
                return next(iter(self._open), self.pull)
            except RuntimeError:  # the dict changed during the iteration, in the other thread
                continue

    @property
    def oldest_ms(self) -> int | None:
        """When the first message that is not done was written to its topic, epoch ms; None if all are done."""
        return self._open.get(self.commit)

    def undone(self, end: int) -> int:
        """How many offsets below `end` are not done."""
        done_before = sum(after - first for first, after in self._done_before)
        return len(self._open) + max(end - self.pull - done_before, 0)

    @property
    def position(self) -> FetchPosition:
        """The position that may be stored."""
        return FetchPosition(self.commit, self.pull, done_ranges(self._open, self.pull) + self._done_before)
