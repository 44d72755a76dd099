"""Decides which messages of one partition get a publishing id, and when. Pure.

A broker drops a message if its publishing id is not greater than the last one under the same producer name. It confirms
the dropped message even if no message with that id was ever stored. So if an id were skipped, and written after a
greater one, its message would be confirmed but lost. Therefore this rule must hold for each producer name, also after a
crash:

    a publishing id is written only after every record in the partition that has a smaller offset and may be pulled
    again has been written under the same name

The publishing id of a record is its offset. A producer name belongs to one log of a partition and to one start of a
group: if the log is recreated or restored, or the group is reset, a new name is used. A consumer pulls records in the
order of their offsets, from a stored position on; records below that position are never pulled again. A pulled record
is open until it is written with its id, or has ended: the other side has it, or it is durable elsewhere, as a retry or
a dead letter. Only the first open record may be written with its id. Consequences:

* A restarted relay may write each record that it pulls again with its id. If the broker has stored a greater id, it has
  also stored this record, or the record is durable elsewhere.
* After the loss of a connection, all unconfirmed messages are written again, in ascending order and before anything
  else. The broker may still read messages from the old connection, or from the relay that had the partition before:
  these are the beginning of a sequence that obeys the same rule. However the sequences interleave, no id is stored
  before a smaller one that is still needed.
* Only a confirm proves that a message is stored. The broker also confirms a repeat, once the last message under that
  name is committed.

A record that is not the first open one waits briefly, because usually the first is being sent. If that takes longer
(the first waits for its key, or for its next retry), later records are written without an id, and may arrive twice
after a crash.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum


class Turn(Enum):
    """How a record may be written now."""

    NUMBERED = "numbered"
    """With its offset as the publishing id. The record now counts as written."""
    WAIT = "wait"
    """Not yet, because an earlier record is open: ask again when that record is written or has ended, or stop waiting
    for it."""
    UNNUMBERED = "unnumbered"
    """Without a publishing id."""


class Numbering:
    """The state of one producer name."""

    def __init__(self) -> None:
        self._open: deque[int] = deque()  # ascending; an ended record is removed only once it is the first
        self._members: set[int] = set()  # the records in `_open` that have not ended
        self._slow: int | None = None  # the first open record, if others have stopped waiting for it
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
        """The publishing ids that were written but are not confirmed, ascending."""
        return sorted(self._unconfirmed)

    def pulled(self, offsets: Iterable[int], start: int) -> None:
        """Records were pulled. Call this in the order of the offsets, before any of the records is written. Records
        below `start` are never pulled again.

        If an offset is not greater than the last one so far, the partition is being read again, so the records that
        were open are forgotten: they will be pulled again.
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
        """The other side has the record, or it is durable elsewhere. If it is pulled again, the broker may drop it."""
        self._members.discard(offset)

    def turn(self, offset: int) -> Turn:
        """How this record may be written. If the result is NUMBERED, the caller must write it at once."""
        first = self.first
        if first == offset:
            self._open.popleft()
            self._members.discard(offset)
            self._unconfirmed.add(offset)
            return Turn.NUMBERED
        return Turn.WAIT if offset in self._members and first != self._slow else Turn.UNNUMBERED

    def stop_waiting(self) -> None:
        """The first open record takes too long, so later records no longer wait for it."""
        self._slow = self.first

    def confirmed(self, offset: int) -> None:
        """The broker has stored this record."""
        self._unconfirmed.discard(offset)
