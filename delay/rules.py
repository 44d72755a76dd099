"""The rules of a shard: what one cycle does to its messages. Pure: no clock, no IO beyond the `View` it is given.

`shard_model.py` in the design folder is the specification; `tests/functional/test_shard_model.py` holds this code to
it. A cycle is worked out on the side (`Cycle`), committed to the log, and only then moved into the store:

    cycle = Cycle(before, view, ids, shard)
    cycle.apply(commands)                    # the master decides; a follower passes the ledger's answers
    cycle.take(now, keys, rows, complete)    # what is due
    ... commit outbox and cycle.entry() ...
    store.write(*store_changes(cycle, entry), ...)   # delay/changes.py

Sets of keys, T = cursor before, T' = cursor after:
* a pending message is a row above T in the store that this cycle did not remove, or one it placed;
* a placed key at or below T is *late*: it goes out in the same cycle, and is never skipped;
* after the cycle exactly the keys above T' are pending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from duemq.bus.base import Stored
from duemq.model.errors import CorruptStore
from duemq.model.ids import IdCodec
from duemq.model.key import CHECKSUM_MASK, KEY_BYTES, checksum, due_of, last_key_at, make_key, offset_of
from duemq.model.ledger import Answer, Deferred, Entry, Fates
from duemq.model.message import (
    CANCEL,
    COMMAND_BODY,
    MALFORMED,
    MOVE,
    REDRIVE,
    SCHEDULE,
    Change,
    due_in,
    is_named,
    kind_of,
    read_change,
    read_name,
)
from duemq.model.row import attempt_of, changed, first_key_of, row_of, without_payload
from duemq.storage.rows import CANCELLED, DEAD, Ended


class View(Protocol):
    """What the rules read of a shard's store, in batches."""

    def rows(self, keys: Sequence[bytes]) -> list[bytes | None]: ...
    def ended(self, keys: Sequence[bytes]) -> list[Ended | None]: ...
    def moved(self, first_keys: Sequence[bytes]) -> list[bytes | None]: ...
    def names(self, names: Sequence[bytes]) -> list[bytes | None]: ...


Due = tuple[bytes, bytes]
"""Key and row of a message that leaves in this cycle."""


class Cycle:
    """One cycle of one shard, worked out but not yet in the store."""

    def __init__(self, before: Entry, view: View, ids: IdCodec, shard: int) -> None:
        self.before, self.view, self._ids, self._shard = before, view, ids, shard
        self.applied, self.cursor = before.applied, before.cursor
        self.answers: dict[int, Answer] = {}
        self.placed: dict[bytes, bytes] = {}  # key -> row of every message placed by this cycle and not removed by it
        self.removed: set[bytes] = set()  # keys of the store's pending rows that this cycle took away
        self.ended: dict[bytes, Ended | None] = {}  # key -> how it ended; None = no longer ended (redriven)
        self.moved: dict[bytes, bytes] = {}  # first key -> current key
        self.names: dict[bytes, bytes] = {}  # name -> first key | fingerprint
        self.malformed: list[Stored] = []
        self.deferred: list[Deferred] = []
        self.due: list[Due] = []  # leaves in this cycle, in order of delivery
        self.scanned: list[bytes] = []  # keys read from the store in (T, T'], whatever became of them
        self._accepted = self._cancelled = self._dead = self._revived = 0

    # --- commands -------------------------------------------------------------------------------------------------

    def apply(self, commands: Sequence[Stored], answers: Mapping[int, Answer] | None = None) -> None:
        """Apply commands in log order. `answers` None: decide (master); else obey what the ledger says (follower)."""
        if not commands:
            return
        found = _Lookups(self.view, commands)
        placed, issue, shard = self.placed, self._ids.issue_bytes, self._shard
        for (offset, timestamp, frame), kind in zip(commands, found.kinds, strict=True):
            if kind != SCHEDULE:
                if kind == MALFORMED:
                    self._refuse(offset, timestamp, frame)
                    continue
                change = read_change(frame)
                given = None if answers is None else answers[offset]
                self.answers[offset] = self._change(offset, timestamp, change, given, found)
                continue
            due = due_in(frame)
            key = make_key(due, offset, 0)
            if is_named(frame) and not self._take_name(key, offset, frame, answers, found):
                continue
            placed[key] = row_of(frame, issue(shard, due, offset))
            self._accepted += 1
        self.applied = commands[-1].offset + 1

    def _refuse(self, offset: int, timestamp: int, frame: bytes) -> None:
        self.answers[offset] = Answer.MALFORMED
        self.malformed.append(Stored(offset, timestamp, frame))

    def _take_name(
        self, key: bytes, offset: int, frame: bytes, answers: Mapping[int, Answer] | None, found: _Lookups
    ) -> bool:
        """Whether a named schedule is the first of its name, and so is placed."""
        name, fingerprint = read_name(frame, COMMAND_BODY)
        if answers is not None:
            answer = answers[offset]
        else:
            holder = self.names.get(name) or found.names.get(name)
            if holder is None:
                answer = Answer.ACCEPTED
            else:
                answer = Answer.DUPLICATE if holder[KEY_BYTES:] == fingerprint else Answer.CONFLICT
        self.answers[offset] = answer
        if answer is not Answer.ACCEPTED:
            return False
        self.names[name] = key + fingerprint
        return True

    def _change(self, offset: int, timestamp: int, change: Change, answer: Answer | None, found: _Lookups) -> Answer:
        first_key = change.first_key
        key = self.moved.get(first_key) or found.moved.get(first_key, first_key)
        ended = self.ended[key] if key in self.ended else found.ended.get(key)
        row = self.placed.get(key)
        if row is None and key not in self.removed:
            row = found.rows.get(key)
        if answer is None:
            answer = self._decide(change.kind, key, row, ended)
        if answer is not Answer.OK:
            return answer
        if change.kind == REDRIVE:
            if ended is None:
                raise CorruptStore(f"command {offset} revives a message that is not in the dead letters here")
            self.ended[key] = None
            self._revived += 1
            row = ended.row
        else:
            if row is None:
                raise CorruptStore(f"command {offset} changes a message that is not pending here")
            self._remove(key)
        if change.kind == CANCEL:
            self.ended[key] = Ended(CANCELLED, 0, "", without_payload(row))
            self._cancelled += 1
            return answer
        # A time that follows from the log alone, so that every replica computes the same.
        due = change.due if change.kind == MOVE else timestamp
        shown = change.due if change.kind == MOVE else None
        attempt = 0 if change.kind == REDRIVE else None
        self._place(
            make_key(due, offset, 0),
            changed(row, due=shown, attempt=attempt) if shown is not None or attempt is not None else row,
        )
        return answer

    def _decide(self, kind: int, key: bytes, row: bytes | None, ended: Ended | None) -> Answer:
        if ended is not None:
            if ended.status == CANCELLED:
                return Answer.CANCELLED_BEFORE
            return Answer.OK if kind == REDRIVE else Answer.DEAD
        if row is None:
            return Answer.UNKNOWN
        if self._delivered(key):
            return Answer.DELIVERED
        return Answer.NOT_DEAD if kind == REDRIVE else Answer.OK

    def _delivered(self, key: bytes) -> bool:
        """Whether an earlier cycle sent this row. What this cycle placed is pending even where its key is late."""
        return key <= self.before.cursor and key not in self.placed

    def _place(self, key: bytes, row: bytes) -> None:
        self.placed[key] = row
        self.moved[first_key_of(row)] = key

    def _remove(self, key: bytes) -> None:
        if self.placed.pop(key, None) is None:
            self.removed.add(key)

    # --- what is due ----------------------------------------------------------------------------------------------

    def take(self, now: int, keys: list[bytes], rows: list[bytes], complete: bool) -> None:
        """Choose what leaves: late messages, and the pending ones up to `now` in order.

        `keys`, `rows`: the store's rows above T due by `now`, in order; `complete` is False where there are more of
        them than were read: then the cursor stops at the last one read, and what was just placed behind it waits.
        """
        cursor = self.cursor
        last = last_key_at(now) if complete else keys[-1]
        self._hold_back([key for key in self.placed if key <= cursor and due_of(key) > now])
        fresh = sorted(key for key in self.placed if key <= last or key <= cursor)
        if fresh and fresh[-1] > self.cursor:
            self.cursor = fresh[-1]
        if keys:
            self.scanned = keys
            self.cursor = max(self.cursor, keys[-1])
            removed = self.removed
            if removed:
                self.due = [due for due in zip(keys, rows, strict=True) if due[0] not in removed]
            else:
                self.due = list(zip(keys, rows, strict=True))
        if fresh:
            placed = self.placed
            self.due += [(key, placed[key]) for key in fresh]
            self.due.sort()

    def _hold_back(self, early: list[bytes]) -> None:
        """The clock went back: a key below T that is not due yet goes to the first ms after T, never out early."""
        for key in early:
            to = make_key(due_of(self.cursor) + 1, offset_of(key), 0)
            self.defer((key, self.placed[key]), Deferred(key, to, attempt_of(self.placed[key]), "clock went back"))

    def follow(self, entry: Entry, keys: list[bytes], rows_of_deferred: Mapping[bytes, bytes]) -> None:
        """Do what the ledger says of a cycle whose commands were applied: its deferrals, then its cursor.

        `keys`: the store's keys in (T, T'] before this cycle; `rows_of_deferred`: the store's rows of deferred keys.
        """
        self.scanned, self.cursor = keys, entry.cursor
        for deferred in entry.deferred:
            row = self.placed.get(deferred.key) or rows_of_deferred[deferred.key]
            self.defer((deferred.key, row), deferred)

    def defer(self, due: Due, deferred: Deferred) -> None:
        """Move a due message to a later key, or to the dead letters, instead of delivering it."""
        key, row = due
        self.deferred.append(deferred)
        self._remove(key)
        if deferred.to is None:
            self.ended[key] = Ended(DEAD, 0, deferred.reason, row)
            self._dead += 1
        else:
            same = deferred.attempt == attempt_of(row)
            self._place(deferred.to, row if same else changed(row, attempt=deferred.attempt))

    # --- the outcome ----------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether there is nothing to commit."""
        return self.applied == self.before.applied and self.cursor == self.before.cursor and not self.due

    def added(self) -> list[bytes]:
        """Keys that are pending after this cycle and were not in the store before."""
        cursor = self.cursor
        return [key for key in self.placed if key > cursor]

    def taken_away(self) -> list[bytes]:
        """Keys that were pending in the store above T' and no longer are: cancelled, moved."""
        cursor = self.cursor
        return [key for key in self.removed if key > cursor]

    def entry(self, at: int) -> Entry:
        """The ledger entry of this cycle, committed `at` ms."""
        added, taken, before = self.added(), self.taken_away(), self.before
        pending = before.pending + len(added) - len(taken) - len(self.scanned)
        total = before.checksum + checksum(added) - checksum(taken) - checksum(self.scanned)
        accepted = before.fates.accepted + self._accepted
        cancelled = before.fates.cancelled + self._cancelled
        dead = before.fates.dead + self._dead - self._revived
        return Entry(
            number=before.number + 1, applied=self.applied, cursor=self.cursor, at=at, answers=self.answers,
            deferred=tuple(self.deferred), pending=pending, checksum=total & CHECKSUM_MASK,
            fates=Fates(accepted, accepted - cancelled - dead - pending, cancelled, dead),
        )  # fmt: skip


class _Lookups:
    """What the store knows of all messages and names that a batch of commands speaks of, read in few calls."""

    def __init__(self, view: View, commands: Sequence[Stored]) -> None:
        self.kinds = [kind_of(frame) for _, _, frame in commands]
        first_keys: dict[bytes, None] = {}
        names: dict[bytes, None] = {}
        for (_, _, frame), kind in zip(commands, self.kinds, strict=True):
            if kind == SCHEDULE:
                if is_named(frame):
                    names[read_name(frame, COMMAND_BODY)[0]] = None
            elif kind != MALFORMED:
                first_keys[read_change(frame).first_key] = None
        # A message has a row under one key only, and none once it ended: most are found by the first look-up.
        firsts = list(first_keys)
        self.rows = dict(zip(firsts, view.rows(firsts), strict=True))
        gone = [first for first in firsts if self.rows[first] is None]
        self.moved = {first: now for first, now in zip(gone, view.moved(gone), strict=True) if now is not None}
        elsewhere = list(self.moved.values())
        self.rows.update(zip(elsewhere, view.rows(elsewhere), strict=True))
        without = [key for key in (self.moved.get(first, first) for first in gone) if self.rows[key] is None]
        self.ended = dict(zip(without, view.ended(without), strict=True))
        self.names = dict(zip(names, view.names(list(names)), strict=True))
