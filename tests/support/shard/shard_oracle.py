"""What must be true of one shard, said as plainly as it can be: dictionaries, no store, no wheel, no batches.

The oracle is told of every command that was produced and reads every cycle that was committed. Of each it works out
anew what the answers, the deferrals, the records at the topics, the counts and the checksum have to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from duemq.bus.partitioner import partition_of
from duemq.delay.core.limits import CycleLimits
from duemq.model.log.ledger import Answer, DeferredMessage, Entry, FileDecision, OutcomeCounts
from duemq.model.messages import row_notes
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.import_command import ImportCommand
from duemq.model.messages.key import CHECKSUM_MASK, LOWEST, checksum, due_of, first_key_at, make_key, read_key
from duemq.model.messages.message import (
    CANCEL,
    DELIVER_NOW,
    MOVE,
    MOVE_WITH_EXPIRY,
    PURGE,
    REDRIVE,
    Change,
    Draft,
    Terms,
)
from duemq.model.messages.plain import ByName
from duemq.model.messages.record import Headers, Partition, Record, unpack_headers
from duemq.model.timing import LAST_MS, window_of

LEAD_MS = 120_000  # see ImportPolicy
PENDING, DELIVERED, CANCELLED, DEAD, PURGED = "pending", "delivered", "cancelled", "dead", "purged"
SYSTEM_HEADERS = (
    "duemq-id", "duemq-due", "duemq-attempt", "duemq-labels", "duemq-redrives", "duemq-topic", "duemq-redriven-id",
)  # fmt: skip
_NO_TERMS = Terms()


@dataclass
class Message:
    """One accepted message and what became of it. Times in ms.

    `shown`: the due time its record says; `asked`: when it was last asked to be delivered, which its key may be after.
    `tags`: the step of each job that changed it, by job, the last one last; of a cancelled one, of what cancelled it.
    `expires`: when it does, 0 = never. `tried`: the attempts that failed, with the times, and deaths.
    `changed`: kind, time, due time shown before and since, and who asked, of each change.
    """

    draft: Draft
    first_key: bytes
    key: bytes
    shown: int
    asked: int
    attempt: int = 0
    state: str = PENDING
    ended_at: int = 0
    redrives: int = 0
    tags: dict[str, str] = field(default_factory=dict)
    expires: int = 0
    tried: list[tuple[int, str]] = field(default_factory=list)
    changed: list[tuple[int, int, int, int, str]] = field(default_factory=list)


@dataclass
class Plain:
    """A record of a plain Kafka client, and what it means: a command, or (text) why it is none.

    `delay`: ms from the append to when the message is due; None where the command says when.
    """

    record: Record
    means: Draft | Change | ByName | str
    delay: int | None = None

    def at(self, timestamp: int) -> Draft | Change | ByName | str:
        """What it means when it was appended at this time."""
        means = self.means
        if isinstance(means, str):
            return means
        due = (means.due or 0) if self.delay is None else timestamp + self.delay
        if not isinstance(means, Draft):
            due = max(due, timestamp) if means.kind == MOVE else 0
        return means._replace(due=due)


@dataclass
class Handed:
    """A file that is to be imported, and what is in it; `bad`: it cannot be imported, `gone`: it may not be there."""

    import_command: ImportCommand
    drafts: Sequence[Draft]
    bad: bool = False
    gone: bool = False


Command = Draft | Change | Plain | Handed


@dataclass
class Oracle:
    """`topics`: partitions of the topics that exist just now; the caller keeps it up to date."""

    ids: IdCodec
    shard: int
    cycle_limits: CycleLimits
    topics: dict[str, int]
    commands: list[tuple[Command, int]] = field(default_factory=list)  # with the time each was appended
    messages: dict[bytes, Message] = field(default_factory=dict)  # by first key
    pending: dict[bytes, Message] = field(default_factory=dict)  # by current key
    names: dict[bytes, Message] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)
    wanted: dict[int, Handed] = field(default_factory=dict)
    contents: dict[str, int] = field(default_factory=dict)
    number: int = -1
    applied: int = 0
    cursor: bytes = LOWEST
    revived: int = 0
    horizon: int = 0  # what ended and was due before is unknown
    end_horizon: int = 0  # what was cancelled or died before is unknown

    def committed(self, entry: Entry, at: int, sent: Mapping[Partition, Sequence[Record]]) -> None:
        """One more cycle is in the ledger, committed when the clock stood at `at`; `sent`: what came with it."""
        assert entry.number == self.number + 1, f"entry {entry.number} after {self.number}"
        assert entry.at == at
        assert self.cursor <= entry.cursor, "the cursor went back"
        assert due_of(entry.cursor) <= max(at, due_of(self.cursor)), "the cursor passed the clock"
        expected: dict[Partition, list[Record]] = {}
        answers: dict[int, Answer] = {}
        placed: list[Message] = []
        for offset in range(self.applied, entry.applied):
            answer, message = self._apply(offset, entry)
            if answer is not None:
                answers[offset] = answer
            if message is not None:
                placed.append(message)
        assert dict(entry.answers) == answers, f"entry {entry.number} answers {entry.answers}, the truth is {answers}"
        deferred = {one.key: one for one in entry.deferred}
        assert len(deferred) == len(entry.deferred)
        for message in placed:
            if message.state == PENDING and message.key <= self.cursor and message.asked > at:
                self._defer(deferred.pop(message.key, None), message, "clock went back", message.attempt, at, entry)
        for key in sorted(key for key in self.pending if key <= entry.cursor):
            self._leave(self.pending[key], deferred, at, entry, expected)
        assert not deferred, f"deferred without need: {deferred}"
        for said in entry.imported:
            self._settle(said, at)
        for offset in range(self.applied, entry.applied):
            command, _ = self.commands[offset]
            if isinstance(command, Plain) and isinstance(command.means, str):
                self._dead_letter(command.record, command.means, offset, entry, expected)
        delivered = {where: list(records) for where, records in sent.items() if records}
        assert delivered == expected, (delivered, expected)
        self.number, self.applied, self.cursor = entry.number, entry.applied, entry.cursor
        self.answers |= answers
        assert all(key > self.cursor for key in self.pending), "pending at or below the cursor: never delivered"
        assert entry.pending == len(self.pending)
        assert entry.checksum == checksum(list(self.pending)) & CHECKSUM_MASK
        assert entry.outcomes == self.outcomes(), f"{entry.outcomes} is not {self.outcomes()}"
        self._forget(entry, at)

    def _forget(self, entry: Entry, at: int) -> None:
        assert self.horizon <= entry.horizon, "what was forgotten is known again"
        assert self.end_horizon <= entry.end_horizon, "what was forgotten is known again"
        known = [message for message in self.messages.values() if message.state != PENDING]
        known = [message for message in known if not self.forgotten(message)]
        self.horizon, self.end_horizon = entry.horizon, entry.end_horizon
        assert first_key_at(entry.horizon) <= entry.cursor or not entry.horizon, "forgotten before it was over"
        for message in known:
            if self.forgotten(message):
                kept = self.cycle_limits.retention_ms
                assert kept is not None, "history is kept for ever"
                assert message.ended_at <= at - min(kept, self.cycle_limits.min_retention_ms), (
                    f"forgotten early: {message}"
                )

    def outcomes(self) -> OutcomeCounts:
        states = [message.state for message in self.messages.values()]
        dead = states.count(DEAD) + states.count(PURGED)
        return OutcomeCounts(len(states), states.count(DELIVERED), states.count(CANCELLED), dead)

    # --- commands -------------------------------------------------------------------------------------------------

    def _apply(self, offset: int, entry: Entry) -> tuple[Answer | None, Message | None]:
        said, timestamp = self.commands[offset]
        command = said.at(timestamp) if isinstance(said, Plain) else said
        if isinstance(command, str):
            return Answer.MALFORMED, None
        if isinstance(command, ByName):
            if command.name not in self.names:
                return Answer.UNKNOWN, None
            command = Change(command.kind, self.names[command.name].first_key, command.due, None, command.by)
        if isinstance(command, Change):
            return self._change(command, offset, timestamp, entry.at)
        if isinstance(command, Handed):
            if command.import_command.sha256 in self.contents:
                return Answer.FILE_DUPLICATE, None
            self.wanted[offset], self.contents[command.import_command.sha256] = command, offset
            return Answer.FILE_PENDING, None
        assert command.due is not None
        first = self.names.get(command.name) if command.name else None
        if first is not None and self.forgotten(first) and entry.answers.get(offset) is Answer.ACCEPTED:
            first = None  # it is free some time after its message was forgotten
        if first is not None:
            same = first.draft.fingerprint == command.fingerprint
            return Answer.DUPLICATE if same else Answer.CONFLICT, None
        first_key, key = make_key(command.due, offset, 0), self._key(command.due, offset)
        message = self.messages[first_key] = self.pending[key] = Message(
            command, first_key, key, command.due, command.due, expires=command.expires
        )
        if command.name:
            self.names[command.name] = message
        return Answer.ACCEPTED if command.name else None, message

    def forgotten(self, message: Message) -> bool:
        if message.state in (CANCELLED, DEAD, PURGED) and message.ended_at < self.end_horizon:
            return True
        return message.state != PENDING and due_of(message.key) < self.horizon

    def _key(self, due: int, offset: int) -> bytes:
        """What was due before the window that the cursor is in gets a place at the start of that window."""
        return make_key(max(due, window_of(due_of(self.cursor))), offset, 0)

    def _change(self, change: Change, offset: int, timestamp: int, at: int) -> tuple[Answer, Message | None]:
        message = self.messages.get(change.first_key)
        if message is None or self.forgotten(message):
            return Answer.UNKNOWN, None
        terms = change.terms or _NO_TERMS
        job, _, step = terms.tag.partition("/")
        if job in message.tags:
            return Answer.REPEATED if message.tags[job] == step else Answer.CHANGED_BEFORE, None
        if job and len(message.tags) >= row_notes.MAX_TAGS and job < min(message.tags):
            return Answer.CHANGED_BEFORE, None  # it may have been one of those that the row tells of no more
        of_the_dead = change.kind in (REDRIVE, PURGE)
        if message.state == CANCELLED:
            return Answer.CANCELLED_BEFORE, None
        if message.state == DELIVERED:
            return Answer.DELIVERED, None
        if message.state in (DEAD, PURGED) and not of_the_dead:
            return Answer.DEAD, None
        if message.state == PURGED:
            return Answer.PURGED, None
        if message.state == PENDING and of_the_dead:
            return Answer.NOT_DEAD, None
        if change.kind == REDRIVE and 0 < terms.most_redrives <= message.redrives:
            return Answer.EXHAUSTED, None
        asked = change.due if change.kind in (MOVE, MOVE_WITH_EXPIRY) else timestamp
        expires = message.expires
        if change.kind == MOVE_WITH_EXPIRY and expires:
            expires = min(max(expires + asked - message.shown, 1), LAST_MS)
        if change.kind in (MOVE, MOVE_WITH_EXPIRY, DELIVER_NOW) and 0 < expires < max(asked, timestamp):
            return Answer.EXHAUSTED, None
        message.expires = expires
        if change.kind == CANCEL:
            message.tags.clear()  # a cancelled message knows only the step that cancelled it
        if job:
            if len(message.tags) >= row_notes.MAX_TAGS:
                del message.tags[min(message.tags)]
            message.tags[job] = step
        self.pending.pop(message.key, None)
        by = f"job:{job}" if job else change.by
        if change.kind == CANCEL:
            message.changed.append((CANCEL, at, 0, 0, by))
            message.state, message.ended_at = CANCELLED, at
            return Answer.OK, None
        if change.kind == PURGE:
            message.changed.append((PURGE, timestamp, 0, 0, by))
            message.state, message.ended_at = PURGED, at
            return Answer.OK, None
        if change.kind == REDRIVE:
            message.state, message.attempt = PENDING, 0
            message.redrives += 1
            self.revived += 1
            if change.terms is not None:
                message.draft = message.draft._replace(topic=terms.topic or message.draft.topic)
                message.expires = 0
        kind = MOVE if change.kind == MOVE_WITH_EXPIRY else change.kind
        message.changed.append((kind, timestamp, message.shown, asked, by))
        message.key, message.asked = self._key(asked, offset), asked
        if kind == MOVE:
            message.shown = change.due
        self.pending[message.key] = message
        return Answer.OK, message

    def _settle(self, said: FileDecision, at: int) -> None:
        """A file of an earlier entry was imported or refused."""
        handed = self.wanted.pop(said.offset)
        window = handed.import_command.window
        near = window < max(at, due_of(self.cursor)) + LEAD_MS
        if said.reason:
            assert handed.bad or handed.gone or near, f"refused without need: {said}"
            assert (said.rows, said.checksum) == (0, 0)
            del self.contents[handed.import_command.sha256]
            return
        assert not handed.bad and not near, f"imported: {handed}"
        keys = []
        for row, draft in enumerate(handed.drafts):
            assert draft.due is not None
            key = make_key(draft.due, said.offset, row)
            self.messages[key] = self.pending[key] = Message(
                draft, key, key, draft.due, draft.due, expires=draft.expires
            )
            keys.append(key)
        assert (said.rows, said.checksum) == (len(keys), checksum(keys))

    # --- what leaves ----------------------------------------------------------------------------------------------

    def _leave(
        self,
        message: Message,
        deferred: dict[bytes, DeferredMessage],
        at: int,
        entry: Entry,
        expected: dict[Partition, list[Record]],
    ) -> None:
        draft, key = message.draft, message.key
        assert message.asked <= at, f"early by {message.asked - at} ms"
        # The place of what was due before the cursor's window may be in the future, where the clock went back.
        assert due_of(key) <= at or key <= self.cursor, f"early by {due_of(key) - at} ms"
        if message.expires and message.expires < at:
            self._bury(deferred.pop(key, None), message, "expired", message.attempt, at, entry, expected)
        elif draft.topic in self.topics:
            assert key not in deferred, f"{deferred[key]} though its topic takes it"
            del self.pending[key]
            message.state, message.ended_at = DELIVERED, at
            self._send(expected, entry, draft.topic, draft.key, self._record(message, ()))
        elif message.attempt + 1 < self.cycle_limits.max_attempts:
            self._defer(deferred.pop(key, None), message, "unknown_topic", message.attempt + 1, at, entry)
        else:
            self._bury(deferred.pop(key, None), message, "unknown_topic", message.attempt + 1, at, entry, expected)

    def _defer(
        self, told: DeferredMessage | None, message: Message, reason: str, attempt: int, at: int, entry: Entry
    ) -> None:
        assert told is not None and told.to is not None, f"{message.key.hex()} should be deferred: {reason}"
        assert (told.reason, told.attempt) == (reason, attempt)
        assert told.to > entry.cursor, f"deferred to a key the cursor has passed: lost ({reason})"
        assert read_key(told.to)[1:] == read_key(message.key)[1:]
        retry = self.cycle_limits.retry_ms
        wait = retry[min(attempt, len(retry)) - 1] if reason == "unknown_topic" else 0
        assert due_of(told.to) >= at + wait
        del self.pending[message.key]
        if attempt != message.attempt:
            message.tried.append((at, reason))
        message.key, message.attempt = told.to, attempt
        assert told.to not in self.pending, "two messages under one key"
        self.pending[told.to] = message

    def _bury(
        self,
        told: DeferredMessage | None,
        message: Message,
        reason: str,
        attempt: int,
        at: int,
        entry: Entry,
        expected: dict[Partition, list[Record]],
    ) -> None:
        assert told == DeferredMessage(message.key, None, attempt, reason)
        del self.pending[message.key]
        topic, why = message.draft.topic.encode(), reason.encode()
        more = (
            ("duemq-topic", topic), ("duemq-reason", why), ("__dlq.errors.topic", topic),
            ("__dlq.errors.delivery.count", str(attempt).encode()), ("__dlq.errors.message", why),
        )  # fmt: skip
        self._send(expected, entry, self.cycle_limits.dead_letter_topic, message.draft.key, self._record(message, more))
        message.tried.append((at, reason))
        message.state, message.attempt, message.ended_at = DEAD, attempt, at

    def _record(self, message: Message, more: Headers) -> Record:
        draft = message.draft
        system = (
            ("duemq-id", self.ids.issue(self.shard, *read_key(message.first_key)).encode()),
            ("duemq-due", str(message.shown).encode()),
            ("duemq-attempt", str(message.attempt + 1).encode()),
            *more,
        )
        labels = (("duemq-labels", ",".join(draft.labels).encode()),) if draft.labels else ()
        if message.redrives:
            labels = (("duemq-redrives", str(message.redrives).encode()), *labels)
        own = unpack_headers(draft.headers, 0, draft.header_count, len(draft.headers))
        own = tuple(pair for pair in own if pair[0] == "duemq-redriven-id" or not pair[0].startswith("duemq-"))
        return Record(draft.key, system + labels + own, draft.payload)

    def _dead_letter(
        self, record: Record, reason: str, offset: int, entry: Entry, expected: dict[Partition, list[Record]]
    ) -> None:
        where = (
            ("duemq-reason", b"malformed"), ("duemq-error", reason.encode()),
            ("duemq-partition", str(self.shard).encode()), ("duemq-offset", str(offset).encode()),
        )  # fmt: skip
        dead = record._replace(headers=where + record.headers)
        self._send(expected, entry, self.cycle_limits.dead_letter_topic, None, dead)

    def _send(
        self, expected: dict[Partition, list[Record]], entry: Entry, topic: str, key: bytes | None, record: Record
    ) -> None:
        count = self.topics[topic]
        partition = (self.shard + entry.number) % count if key is None else partition_of(key, count)
        expected.setdefault((topic, partition), []).append(record)
