"""Which messages of one partition get a publishing id, and when. Pure.

A broker drops a message whose publishing id is not greater than the last one of its producer name, whether that message
was stored or not, and confirms it. So an id that was left out, and comes after a greater one, would be confirmed and
lost. This must hold for each producer name, also after a crash:

    a publishing id is written only when every record of the partition with a smaller offset, which may come again, has
    been written before it under the same name

The publishing id of a record is its offset. The name stands for one log of a partition, which a group reads from one
start: a log that was made anew or restored, and a group that was put back, have other names. A consumer pulls records
in the order of their offsets, from a stored position below which none comes again. What it pulled is open here until it
is written with its id, or has ended: the other side has it, or it is durable elsewhere, as a retry or a dead letter.
Only the first open record may be written with its id. Therefore

* a restarted relay may write each record that comes again with its id: if the broker has a greater one it has this one,
  too, or the record is durable elsewhere
* after the loss of a connection all that was not confirmed is written again, in ascending order and before anything
  else. What the broker still reads from the old connection, or from a relay that had the partition before, is the
  beginning of a sequence of the same kind: whatever is mixed with whatever, no id is stored before a smaller one that
  is still needed
* only a confirm says that a message is stored. The broker gives it for a repeat, too, once the last one of that name
  is committed

A record that is not the first waits for a moment: mostly the first one is on its way. Where that takes longer (the
first one waits for its key, or for its next try) later ones are written without an id, and may arrive twice after a
crash.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum


class Turn(Enum):
    """How a record may be written now."""

    NUMBERED = "numbered"
    """With its offset as publishing id: it counts as written."""
    WAIT = "wait"
    """A record before it is open; ask again when that one is written or has ended, or give up waiting."""
    UNNUMBERED = "unnumbered"
    """Without a publishing id."""


class Numbering:
    """Of one producer name."""

    def __init__(self) -> None:
        self._open: deque[int] = deque()  # in ascending order; what has ended is taken out when it is the first
        self._members: set[int] = set()  # what of it has not ended
        self._slow: int | None = None  # the first open record, which others gave up waiting for
        self._unconfirmed: set[int] = set()

    @property
    def first(self) -> int | None:
        """The first open record."""
        waiting, members = self._open, self._members
        while waiting and waiting[0] not in members:
            waiting.popleft()
        return waiting[0] if waiting else None

    @property
    def unconfirmed(self) -> list[int]:
        """Publishing ids that were written and are not known to be stored, in ascending order."""
        return sorted(self._unconfirmed)

    def pulled(self, offsets: Iterable[int], start: int) -> None:
        """Records come, in ascending order, before any of them is to be written. Below `start` none comes again.

        Where the first one is not greater than the last that came, all from there on come again.
        """
        while self._open and self._open[0] < start:
            self._members.discard(self._open.popleft())
        for offset in offsets:
            if self._open and offset <= self._open[-1]:
                self._open.clear()
                self._members.clear()
            self._open.append(offset)
            self._members.add(offset)

    def ended(self, offset: int) -> None:
        """The other side has it, or it is durable elsewhere: it does not come again, or may be dropped then."""
        self._members.discard(offset)

    def turn(self, offset: int) -> Turn:
        """How this record may be written. NUMBERED: the caller writes it at once."""
        first = self.first
        if first == offset:
            self._open.popleft()
            self._members.discard(offset)
            self._unconfirmed.add(offset)
            return Turn.NUMBERED
        return Turn.WAIT if offset in self._members and first != self._slow else Turn.UNNUMBERED

    def stop_waiting(self) -> None:
        """The first open record takes too long: those behind it do not wait for it."""
        self._slow = self.first

    def confirmed(self, offset: int) -> None:
        """It is stored."""
        self._unconfirmed.discard(offset)
