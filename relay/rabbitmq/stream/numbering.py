"""Decides which messages of one partition get a publishing id, and when. Pure.

A broker drops a message whose publishing id is not greater than the last one of its producer name. It does so whether
or not that message was stored, and confirms it. So an id that was skipped and is sent after a greater one would be
confirmed and lost. Therefore this must hold for each producer name, also after a crash:

    a publishing id is written only after every record of the partition with a smaller offset that may be pulled again
    has been written under the same name

The publishing id of a record is its offset. A producer name stands for one log of a partition, read by a group from one
start: a recreated or restored log, and a group that was reset, get other names. A consumer pulls records in the order
of their offsets, from a stored position; records below it are never pulled again. A pulled record is open until it is
written with its id, or has ended: the other side has it, or it is durable elsewhere, as a retry or a dead letter. Only
the first open record may be written with its id. It follows:

* A restarted relay may write each record that it pulls again with its id: if the broker has a greater id, it has this
  record, too, or the record is durable elsewhere.
* After the loss of a connection, all unconfirmed messages are written again, in ascending order and before anything
  else. What the broker still reads from the old connection, or from the relay that had the partition before, is the
  beginning of a sequence of the same kind. However the sequences interleave, no id is stored before a smaller one that
  is still needed.
* Only a confirm says that a message is stored. The broker also confirms a repeat, once the last message of that name is
  committed.

A record that is not the first open one waits briefly: usually the first is being sent. If that takes longer (the first
waits for its key, or for its next retry), later records are written without an id, and may arrive twice after a crash.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum


class Turn(Enum):
    """How a record may be written now."""

    NUMBERED = "numbered"
    """With its offset as publishing id. It counts as written."""
    WAIT = "wait"
    """An earlier record is open: ask again when that one is written or has ended, or give up waiting."""
    UNNUMBERED = "unnumbered"
    """Without a publishing id."""


class Numbering:
    """State of one producer name."""

    def __init__(self) -> None:
        self._open: deque[int] = deque()  # ascending; an ended record is removed once it is the first
        self._members: set[int] = set()  # those of `_open` that have not ended
        self._slow: int | None = None  # the first open record, if others gave up waiting for it
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
        """Publishing ids that were written and are not confirmed, ascending."""
        return sorted(self._unconfirmed)

    def pulled(self, offsets: Iterable[int], start: int) -> None:
        """Records were pulled. Call this, in order, before any of them is written. None below `start` is pulled again.

        If the first is not greater than the last record so far, all records from the first on are pulled again.
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
        """The other side has the record, or it is durable elsewhere: it is not pulled again, or may be dropped then."""
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
        """The first open record takes too long: later records no longer wait for it."""
        self._slow = self.first

    def confirmed(self, offset: int) -> None:
        """The broker has stored it."""
        self._unconfirmed.discard(offset)
