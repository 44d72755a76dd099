"""The rules of a shard: the effects of one cycle on its messages. Pure: no clock, and no IO except the given `View`.

The specification is the design's executable model (`shard_model.py`, not in this repository);
`tests/functional/shard/test_shard_model.py` checks this code against it. A cycle is first computed (`Cycle`), then
committed to the log, and only then written to the store:

    cycle = Cycle(before, view, ids, shard)
    batch = cycle.read(commands)             # parse them
    cycle.apply(batch)                       # the master decides; a follower passes the ledger's answers
    cycle.take(now, keys, rows, complete)    # due messages; a follower: cycle.follow(entry, keys, rows)
    cycle.decide_files(files)                # imported files; then `defer` undeliverable messages, and `rest_at`
    ... commit outbox and cycle.entry() ...
    store.write(*store_changes(cycle, entry), ...)   # delay/replica/store_changes.py

The rules for keys, where T is the cursor before the cycle and T' the cursor after it:
* a message is pending if its row is above T in the store and this cycle did not remove it, or if this cycle placed it;
* a placed key at or below T is *late*: its message is delivered in the same cycle, and never skipped;
* no key is placed before T's window: a message that was due earlier gets a key at the start of that window. So every
  message with a key before the window has ended for good, and history can be forgotten window by window;
* after the cycle, the pending keys are exactly those above T'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import chain

from duemq.delay.core.command_batch import CommandBatch, Lookups, View, understand
from duemq.model.callers.caller import job_of
from duemq.model.errors import CorruptStore
from duemq.model.log.ledger import Answer, DeferredMessage, Entry, FileDecision, OutcomeCounts
from duemq.model.messages.ended import CANCELLED, DEAD, PURGED, EndedMessage
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.import_command import ImportCommand
from duemq.model.messages.key import (
    CHECKSUM_MASK,
    HIGHEST,
    KEY_BYTES,
    checksum,
    due_of,
    first_key_at,
    last_key_at,
    make_key,
    offset_of,
)
from duemq.model.messages.message import CANCEL, MOVE, MOVE_WITH_EXPIRY, MOVES, PURGE, REDRIVE, Change, read_name
from duemq.model.messages.names import Name
from duemq.model.messages.plain import ByName, MalformedRecord, RecordPosition
from duemq.model.messages.record import StoredRecord
from duemq.model.messages.row import (
    attempt_of,
    change_row,
    count_topics,
    expires_of,
    first_key_of,
    redriven_row,
    redrives_of,
    row_of,
    shown_due,
    topic_of,
    without_payload,
)
from duemq.model.messages.row_notes import Attempt, PastChange, earlier_step, tags_of, with_attempt, with_change
from duemq.model.timing import LAST_MS, WINDOW_MS, window_of

MAX_NAMED = 1_000
"""How many changes by name an entry lists with their messages. Limited because an entry must fit into one record."""

Due = tuple[bytes, bytes]
"""Key and row of a message that is due in this cycle."""


class Phase(IntEnum):
    """The progress of a cycle. Each step belongs to one phase, so that none can run out of order."""

    COMMANDS = 0  # lose, read, apply
    DUE = 1  # entered by take or follow: decide_files, defer, rest_at
    RECORDED = 2  # entered by entry: no more changes


class PhaseError(RuntimeError):
    """A step of a cycle ran out of order: a bug in the caller."""


class Cycle:
    """One cycle of one shard, computed but not yet in the store.

    `shards`: the cluster's number of shards; with None, a plain record may use any name in any partition.
    """

    def __init__(self, before: Entry, view: View, ids: IdCodec, shard: int, shards: int | None = None) -> None:
        self.before, self.view, self._log = before, view, RecordPosition(shard, shards, ids)
        self.applied, self.cursor = before.applied, before.cursor
        self.answers: dict[int, Answer] = {}
        self.placed: dict[bytes, bytes] = {}  # key -> row of every message placed by this cycle and not removed by it
        # Keys of the store's pending rows that this cycle removed -> topic; the topic is empty if the row was not read.
        self.removed: dict[bytes, bytes] = {}
        self.endings: dict[bytes, EndedMessage | None] = {}  # key -> ending; None = no longer ended (redriven)
        self.current_keys: dict[bytes, bytes] = {}  # first key -> current key
        self.names: dict[bytes, bytes] = {}  # name -> first key | fingerprint
        self.named: dict[int, bytes] = {}  # offset of a change by name -> first key of the message with that name
        self.malformed: list[tuple[StoredRecord, str]] = []  # malformed commands, each with the reason
        self.import_commands: dict[int, ImportCommand] = {}  # files to import, by the offset of their command
        self._contents: set[str] = set()  # SHA-256 sums (hex) of the files to import
        self.file_decisions: tuple[FileDecision, ...] = ()  # files that were imported or refused
        self.loss: tuple[int, int] | None = None  # offsets [from, to) of commands that the log dropped unread
        self.deferred: list[DeferredMessage] = []
        self._failed: set[DeferredMessage] = set()  # those deferred because an attempt failed
        # Due time (ms) of the messages that were due before the cursor's window, by key.
        self.requested_dues: dict[bytes, int] = {}
        # For messages that were due before the log appended their command: due time (ms) and append time (ms), by key.
        self.overdue: dict[bytes, tuple[int, int]] = {}
        self.due: list[Due] = []  # in order of delivery
        self.scanned: list[bytes] = []  # all keys read from the store in (T, T']
        self.scanned_rows: Sequence[bytes] = ()  # the rows of `scanned`
        self._accepted = self._cancelled = self._dead = self._revived = 0
        self._phase = Phase.COMMANDS
        self._floor_ms = window_of(due_of(before.cursor))
        self._floor = first_key_at(self._floor_ms)

    def _require(self, phase: Phase, step: str) -> None:
        """Raise PhaseError in another phase."""
        if self._phase is not phase:
            raise PhaseError(f"{step} belongs to the phase {phase.name} of a cycle, not to {self._phase.name}")

    # --- commands -------------------------------------------------------------------------------------------------

    def read(self, commands: Sequence[StoredRecord], answers: Mapping[int, Answer] | None = None) -> CommandBatch:
        """Parse commands, in log order. `answers`: see `apply`."""
        self._require(Phase.COMMANDS, "read")
        return understand(commands, self._log, answers)

    def lose(self, end: int) -> None:
        """Record that the log has lost the commands below the offset `end`. Call it before `apply`."""
        self._require(Phase.COMMANDS, "lose")
        self.loss = (self.applied, end)
        self.applied = end

    def apply(self, batch: CommandBatch, answers: Mapping[int, Answer] | None = None, view: View | None = None) -> None:
        """Apply commands. With `answers` None, decide them (master), else obey the ledger's answers (follower).

        `view`: a view of the same store in which the rows that the commands refer to are already in memory.
        """
        self._require(Phase.COMMANDS, "apply")
        if not batch.commands:
            return
        lookups = Lookups(view or self.view, batch)
        placed, floor, (shard, _, ids) = self.placed, self._floor, self._log
        issue = ids.issue_bytes
        for (offset, timestamp, frame), fields in zip(batch.commands, batch.schedules, strict=True):
            if fields is None:
                other = batch.others[offset]
                if isinstance(other, MalformedRecord):
                    self.answers[offset] = Answer.MALFORMED
                    self.malformed.append((StoredRecord(offset, timestamp, frame), other.reason))
                elif isinstance(other, ImportCommand):
                    self.answers[offset] = self._apply_import(offset, other, answers, lookups)
                else:
                    answer = None if answers is None else answers[offset]
                    self.answers[offset] = self._change(offset, timestamp, other, answer, lookups)
                continue
            due = fields.due
            key = make_key(due, offset, 0)
            if fields.name_bytes and not self._claim_name(key, offset, read_name(frame, fields), answers, lookups):
                continue
            row = row_of(frame, issue(shard, due, offset), fields)
            if key >= floor:
                placed[key] = row
                if due < timestamp:
                    self.overdue[key] = due, timestamp
            else:
                self._place(due, offset, timestamp, row)
            self._accepted += 1
        self.applied = batch.commands[-1].offset + 1

    def _claim_name(
        self,
        key: bytes,
        offset: int,
        name_fields: tuple[Name, bytes],
        answers: Mapping[int, Answer] | None,
        lookups: Lookups,
    ) -> bool:
        """Whether this schedule is the first one with its name, and so is placed."""
        name, fingerprint = name_fields
        if answers is not None:
            answer = answers[offset]
        else:
            holder = self.names.get(name) or lookups.names.get(name)
            if holder is None:
                answer = Answer.ACCEPTED
            else:
                answer = Answer.DUPLICATE if holder[KEY_BYTES:] == fingerprint else Answer.CONFLICT
        self.answers[offset] = answer
        if answer is not Answer.ACCEPTED:
            return False
        self.names[name] = key + fingerprint
        return True

    def _apply_import(
        self, offset: int, import_command: ImportCommand, answers: Mapping[int, Answer] | None, lookups: Lookups
    ) -> Answer:
        if answers is None:
            is_duplicate = (
                lookups.contents[import_command.sha256] is not None or import_command.sha256 in self._contents
            )
            answer = Answer.FILE_DUPLICATE if is_duplicate else Answer.FILE_PENDING
        else:
            answer = answers[offset]
        if answer is Answer.FILE_PENDING:
            self.import_commands[offset] = import_command
            self._contents.add(import_command.sha256)
        return answer

    def _change(
        self, offset: int, timestamp: int, change: Change | ByName, answer: Answer | None, lookups: Lookups
    ) -> Answer:
        if isinstance(change, ByName):
            holder = self.names.get(change.name) or lookups.names.get(change.name)
            if holder is None:
                # A follower may have forgotten a name that the master still knew, but never the name of a current
                # message. Ledger answers other than OK change nothing.
                if answer is Answer.OK:
                    raise CorruptStore(f"command {offset} changes a message by a name that is unknown here")
                return Answer.UNKNOWN if answer is None else answer
            change = Change(change.kind, holder[:KEY_BYTES], change.due, None, change.by)
            answer = self._change(offset, timestamp, change, answer, lookups)
            if answer is not Answer.UNKNOWN and len(self.named) < MAX_NAMED:
                self.named[offset] = change.first_key
            return answer
        first_key = change.first_key
        key = self.current_keys.get(first_key) or lookups.current_keys.get(first_key, first_key)
        ended = self.endings[key] if key in self.endings else lookups.endings.get(key)
        row = self.placed.get(key)
        if row is None and key not in self.removed:
            row = lookups.rows.get(key)
        if answer is None:
            answer = self._decide(change, key, row, ended)
            if answer is Answer.OK and row and _is_behind_expiry(change, row, timestamp):
                answer = Answer.EXHAUSTED
        if answer is not Answer.OK:
            return answer
        terms = change.terms
        tag = "" if terms is None else terms.tag
        by = job_of(tag) or change.by
        if change.kind in (REDRIVE, PURGE):
            if ended is None:
                raise CorruptStore(f"command {offset} refers to a message that is not in the dead letters here")
            if change.kind == PURGE:
                row = with_change(without_payload(ended.row), PastChange(PURGE, timestamp, by=by), tag)
                self.endings[key] = EndedMessage(PURGED, 0, ended.reason, row)
                return answer
            self.endings[key] = None
            self._revived += 1
            row = redriven_row(ended.row, b"" if terms is None else terms.topic.encode(), keeps_expiry=terms is None)
        else:
            if row is None:
                raise CorruptStore(f"command {offset} changes a message that is not pending here")
            self._remove(key, row)
        if change.kind == CANCEL:
            self.endings[key] = EndedMessage(CANCELLED, 0, tag or by, without_payload(row) if row else b"")
            self._cancelled += 1
            return answer
        if not row:
            raise CorruptStore(f"command {offset} moves a message whose row was not read")
        # This time depends only on the log, so every replica computes the same one.
        due = change.due if change.kind in MOVES else timestamp
        past = PastChange(MOVE if change.kind in MOVES else change.kind, timestamp, shown_due(row), due, by)
        if change.kind in MOVES:
            row = change_row(row, due=due, expires=_expiry_after(change, row))
        self._place(due, offset, timestamp, with_change(row, past, tag))
        return answer

    def _decide(self, change: Change, key: bytes, row: bytes | None, ended: EndedMessage | None) -> Answer:
        kind, terms = change.kind, change.terms
        before = self.before  # its horizons decide which messages are forgotten, even if not purged here yet
        if due_of(key) < before.horizon and (ended is not None or self._is_delivered(key)):
            return Answer.UNKNOWN
        if ended is not None and ended.at < before.end_horizon and key not in self.endings:
            return Answer.UNKNOWN
        if terms is not None and terms.tag:
            tags = ended.tags if ended is not None else tags_of(row or b"")
            if (step := earlier_step(tags, terms.tag)) is not None:
                return Answer.REPEATED if step == terms.tag else Answer.CHANGED_BEFORE
        of_the_dead = kind in (REDRIVE, PURGE)
        if ended is not None:
            if ended.status == CANCELLED:
                return Answer.CANCELLED_BEFORE
            if not of_the_dead:
                return Answer.DEAD
            if ended.status == PURGED:
                return Answer.PURGED
            most = 0 if terms is None or kind == PURGE else terms.most_redrives
            return Answer.EXHAUSTED if most and redrives_of(ended.row) >= most else Answer.OK
        if row is None:
            return Answer.UNKNOWN
        if self._is_delivered(key):
            return Answer.DELIVERED
        return Answer.NOT_DEAD if of_the_dead else Answer.OK

    def _is_delivered(self, key: bytes) -> bool:
        """Whether an earlier cycle delivered this row. A row placed by this cycle is pending even if its key is
        late."""
        return key <= self.before.cursor and key not in self.placed

    def _place(self, due: int, offset: int, timestamp: int, row: bytes) -> None:
        key = make_key(due, offset, 0)
        if key < self._floor:
            key = make_key(self._floor_ms, offset, 0)
            self.requested_dues[key] = due
        if due < timestamp:
            self.overdue[key] = due, timestamp
        self._put(key, row)

    def _put(self, key: bytes, row: bytes) -> None:
        self.placed[key] = row
        self.current_keys[first_key_of(row)] = key

    def _remove(self, key: bytes, row: bytes) -> None:
        if self.placed.pop(key, None) is None:
            self.removed[key] = topic_of(row) if row else b""

    # --- due messages ---------------------------------------------------------------------------------------------

    def take(self, now: int, keys: list[bytes], rows: list[bytes], complete: bool) -> None:
        """Choose the messages to deliver: the late ones, and the pending ones up to `now` in order.

        `keys`, `rows`: the store's rows above T that are due by `now`, in order. `complete` is False if only some of
        them were read: then the cursor stops at the last one read, and newly placed messages after it wait.
        """
        self._require(Phase.COMMANDS, "take")
        self._phase = Phase.DUE
        cursor, requested_dues = self.cursor, self.requested_dues
        last = last_key_at(now) if complete else keys[-1]
        for key in [key for key in self.placed if key <= cursor and requested_dues.get(key, due_of(key)) > now]:
            # The clock went back: the key is at or below T but not due yet. It moves to the first ms after T, so that
            # the message is never early.
            row, to = self.placed[key], make_key(due_of(self.cursor) + 1, offset_of(key), 0)
            self.defer((key, row), DeferredMessage(key, to, attempt_of(row), "clock went back"))
        placed_keys = sorted(key for key in self.placed if key <= last or key <= cursor)
        if placed_keys and placed_keys[-1] > self.cursor:
            self.cursor = placed_keys[-1]
        if keys:
            self.scanned, self.scanned_rows = keys, rows
            self.cursor = max(self.cursor, keys[-1])
            removed = self.removed
            if removed:
                self.due = [due for due in zip(keys, rows, strict=True) if due[0] not in removed]
            else:
                self.due = list(zip(keys, rows, strict=True))
        if placed_keys:
            placed = self.placed
            self.due += [(key, placed[key]) for key in placed_keys]
            self.due.sort()

    def rest_at(self, key: bytes) -> None:
        """Advance the cursor without delivering: no message with a key up to this one is pending after this cycle."""
        self._require(Phase.DUE, "rest_at")
        self.cursor = max(self.cursor, key)

    def follow(self, entry: Entry, keys: list[bytes], rows: list[bytes]) -> None:
        """Apply a ledger entry after its commands: its deferrals, then its cursor.

        `keys`, `rows`: the store's keys and rows in (T, T'] before this cycle.
        """
        self._require(Phase.COMMANDS, "follow")
        self._phase = Phase.DUE
        self.scanned, self.scanned_rows, self.cursor = keys, rows, entry.cursor
        self.decide_files(entry.imported)
        rows_of_deferred = dict(zip(keys, rows, strict=True)) if entry.deferred else {}
        for deferred in entry.deferred:
            row = self.placed.get(deferred.key) or rows_of_deferred[deferred.key]
            self.defer((deferred.key, row), deferred)

    def defer(self, due: Due, deferred: DeferredMessage) -> None:
        """Move a due message to a later key, or to the dead letters, instead of delivering it."""
        self._require(Phase.DUE, "defer")
        key, row = due
        self.deferred.append(deferred)
        self._remove(key, row)
        if deferred.to is None:
            self.endings[key] = EndedMessage(DEAD, 0, deferred.reason, row)
            self._dead += 1
        else:
            if deferred.attempt != attempt_of(row):
                row = change_row(row, attempt=deferred.attempt)
                self._failed.add(deferred)
            self._put(deferred.to, row)

    def _record_attempts(self, at: int) -> None:
        """Record failed attempts and dead-letterings in the rows."""
        for deferred in self.deferred:
            attempt = Attempt(at, deferred.reason)
            if deferred.to is None:
                if (ended := self.endings[deferred.key]) is not None:
                    self.endings[deferred.key] = ended._replace(row=with_attempt(ended.row, attempt))
            elif deferred in self._failed:
                self.placed[deferred.to] = with_attempt(self.placed[deferred.to], attempt)

    def decide_files(self, decisions: Sequence[FileDecision]) -> None:
        """Make the messages in valid local files pending, or refuse the files. Call it after `take`.

        All their keys are above T', because a file whose window has begun is refused.
        """
        self._require(Phase.DUE, "decide_files")
        self.file_decisions = tuple(decisions)
        self._accepted += sum(decision.rows for decision in decisions)

    # --- the outcome ----------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether the cycle has nothing to commit."""
        before = self.before
        return (
            self.applied == before.applied and self.cursor == before.cursor and not self.due and not self.file_decisions
        )

    def windows_of_ends(self, at: int) -> set[int]:
        """The windows of due times (start in ms) in which this cycle, committed `at` ms, ended messages.

        Future windows are left out, because their messages ended early. Master and follower compute the same windows.
        """
        cursor = self.cursor
        windows: set[int] = set()
        for keys in (self.scanned, [key for key in self.placed if key <= cursor]):
            if keys:
                first, last = window_of(due_of(min(keys))), window_of(due_of(max(keys)))
                windows.update((first, last) if last - first <= WINDOW_MS else map(window_of, map(due_of, keys)))
        windows.update(window_of(due_of(key)) for key, ended in self.endings.items() if ended is not None)
        return {window for window in windows if window <= at}

    def added_keys(self) -> list[bytes]:
        """Keys that are pending after this cycle and were not in the store before it."""
        cursor = self.cursor
        return [key for key in self.placed if key > cursor]

    def placed_rows(self) -> Iterable[Due]:
        """Keys and rows of all messages that this cycle placed, including those that also ended in this cycle."""
        if not self.endings:
            return self.placed.items()
        ended = (
            (key, ended.row)
            for key, ended in self.endings.items()
            if ended is not None and offset_of(key) >= self.before.applied
        )
        return chain(self.placed.items(), ended)

    def removed_keys(self) -> list[bytes]:
        """Keys above T' that were pending in the store and no longer are, because their messages were cancelled or
        moved."""
        cursor = self.cursor
        return [key for key in self.removed if key > cursor]

    def topic_changes(self, through: bytes = HIGHEST) -> Counter[bytes]:
        """How the number of pending messages changes per topic, for keys up to `through`, without imported messages.

        A cancelled message whose row was not read is still counted as pending here.
        """
        cursor, scanned = self.cursor, self.scanned_rows
        if through < HIGHEST:
            placed = [row for key, row in self.placed.items() if cursor < key <= through]
            scanned = [row for key, row in zip(self.scanned, self.scanned_rows, strict=True) if key <= through]
        else:
            placed = [row for key, row in self.placed.items() if key > cursor]
        changes = count_topics(placed)
        changes.subtract(count_topics(scanned))
        changes.subtract(topic for key, topic in self.removed.items() if topic and cursor < key <= through)
        return changes

    def entry(self, at: int, horizon: int = 0, end_horizon: int = 0, topics: Iterable[str] = ()) -> Entry:
        """The ledger entry of this cycle, committed `at` ms. For the horizons and `topics` see `Entry`."""
        if self._phase is not Phase.RECORDED:
            self._require(Phase.DUE, "entry")
            self._record_attempts(at)
        self._phase = Phase.RECORDED
        added, removed, before = self.added_keys(), self.removed_keys(), self.before
        file_rows = sum(decision.rows for decision in self.file_decisions)
        pending = before.pending + len(added) - len(removed) - len(self.scanned) + file_rows
        total = before.checksum + checksum(added) - checksum(removed) - checksum(self.scanned)
        total += sum(decision.checksum for decision in self.file_decisions)
        accepted = before.outcomes.accepted + self._accepted
        cancelled = before.outcomes.cancelled + self._cancelled
        dead = before.outcomes.dead + self._dead - self._revived
        return Entry(
            number=before.number + 1, applied=self.applied, cursor=self.cursor, at=at, answers=self.answers,
            deferred=tuple(self.deferred), pending=pending, checksum=total & CHECKSUM_MASK,
            outcomes=OutcomeCounts(accepted, accepted - cancelled - dead - pending, cancelled, dead),
            horizon=max(before.horizon, horizon), imported=self.file_decisions,
            end_horizon=max(before.end_horizon, end_horizon), lost=self.loss, named=self.named,
            topics=tuple(topics),
        )  # fmt: skip


def _expiry_after(change: Change, row: bytes) -> int:
    """When a message expires after a change (epoch ms, 0 = never)."""
    expires = expires_of(row)
    if not expires or change.kind != MOVE_WITH_EXPIRY:
        return expires
    return min(max(expires + change.due - shown_due(row), 1), LAST_MS)


def _is_behind_expiry(change: Change, row: bytes, timestamp: int) -> bool:
    """Whether a message would expire before it is due. Clients may not request that."""
    expires = 0 if change.kind == CANCEL else _expiry_after(change, row)
    return bool(expires) and expires < max(change.due if change.kind in MOVES else timestamp, timestamp)
