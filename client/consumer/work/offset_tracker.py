"""Which messages of a partition are in hand: the first that is not done is what may be committed. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class Book:
    """One partition. Offsets are pulled in their order and done in any order.

    Invariant: everything below `commit` is done, and `commit` itself is not, or was never pulled.
    """

    __slots__ = ("_done", "_open", "closed", "pull", "saved", "unsaved")

    def __init__(self, start: int) -> None:
        self.pull = start
        """The offset after the last one pulled, or farther where what follows are markers of transactions."""
        self.saved = (-1, -1)
        """`commit` and `pull` as they were stored last."""
        self.unsaved = 0
        """Messages done since offsets were stored last: they come again if this member is lost."""
        self.closed = False
        """The partition went to another member: what is still in hand is not begun."""
        self._open: deque[int] = deque()
        self._done: set[int] = set()

    def __len__(self) -> int:
        """Messages in hand."""
        return len(self._open) - len(self._done)

    def pulled(self, offsets: Iterable[int], position: int) -> None:
        """More messages are in hand. `position`: where the next pull starts."""
        self._open.extend(offsets)
        self.pull = position

    def done(self, offset: int) -> None:
        """This one was handled, sent back or given up, and that is durable."""
        self.unsaved += 1
        waiting = self._open
        if waiting and waiting[0] == offset:
            waiting.popleft()
            done = self._done
            while done and waiting[0] in done:
                done.discard(waiting.popleft())
        else:
            self._done.add(offset)

    @property
    def commit(self) -> int:
        """The first offset that is not done. May be asked for in another thread, as metrics are."""
        try:
            return self._open[0]
        except IndexError:
            return self.pull
