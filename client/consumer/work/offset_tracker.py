"""Which messages of a partition are not done: what may be stored as its position. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duemq.client.consumer.base import FetchPosition
from duemq.client.consumer.done_ranges import Ranges, behind, contains, done_ranges
from duemq.client.consumer.work.aside import Aside


class Book:
    """One partition. Offsets are pulled in their order and done in any order.

    Invariant: everything below `commit` is done, and `commit` itself is not, or was never pulled.
    """

    __slots__ = ("_done_before", "_open", "aside", "closed", "pull", "saved", "unsaved")

    def __init__(self, start: int, done_before: Ranges = ()) -> None:
        """`done_before`: messages from `start` on that were done before this member had the partition."""
        self.pull = start
        """The offset after the last one pulled, or farther where what follows are markers of transactions."""
        self.saved = FetchPosition(-1, -1)
        """What was stored last."""
        self.unsaved = 0
        """Messages done since the position was stored last: they come again if this member is lost."""
        self.closed = False
        """The partition went to another member: what is still in hand is not begun."""
        self.aside = Aside()
        """Messages that were read, are not done, and are not in hand."""
        self._open: dict[int, int] = {}  # offsets in ascending order, with the times of their records
        self._done_before = done_before

    def __len__(self) -> int:
        """Messages in hand."""
        return len(self._open) - len(self.aside)

    def without_done(self, records: list[Any]) -> list[Any]:
        """Records that were pulled just now, without those that were done before this member had the partition."""
        if not self._done_before:
            return records
        return [record for record in records if not contains(self._done_before, record.offset)]

    def pulled(self, times: Mapping[int, int], position: int) -> None:
        """More messages came. `times`: of their records, epoch ms, by offset. `position`: of the next pull."""
        self._open.update(times)
        self.pull = max(self.pull, position)
        if self._done_before:
            self._done_before = behind(self._done_before, position)

    def done(self, offset: int) -> None:
        """This one was handled, sent back or given up, and that is durable."""
        self.unsaved += 1
        self._open.pop(offset, None)

    @property
    def commit(self) -> int:
        """The first offset that is not done. May be asked for in another thread, as metrics are."""
        while True:
            try:
                return next(iter(self._open), self.pull)
            except RuntimeError:  # it changed at this moment
                continue

    @property
    def oldest_ms(self) -> int | None:
        """When the first message that is not done came into its topic, epoch ms; None if all are done."""
        return self._open.get(self.commit)

    def undone(self, end: int) -> int:
        """How many offsets below `end` are not done."""
        done_before = sum(after - first for first, after in self._done_before)
        return len(self._open) + max(end - self.pull - done_before, 0)

    @property
    def position(self) -> FetchPosition:
        """What may be stored."""
        return FetchPosition(self.commit, self.pull, done_ranges(self._open, self.pull) + self._done_before)
