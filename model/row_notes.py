"""What a shard notes in a row beside the message: which job changed it last, the attempts that failed, the changes.

Notes stand in front of the row's name (`model/row.py`), as JSON, and consumers never get them. Most rows have none.

    notes = [tag, [[at ms, reason], ...]]
          | [tag, [[at ms, reason], ...], [[kind, at ms, before ms, after ms, by], ...], changes left out]

A tag is `JOB/STEP` in ASCII: the job of whose step the last change was a part (docs/adr/0041). Changes: docs/adr/0047.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import orjson

from duemq.model.row import ROW

MAX_ATTEMPTS: Final = 40
"""How many failed attempts a row tells of: the last ones."""

MAX_CHANGES: Final = 16
"""How many changes a message tells of: the first one and the last 15."""

_REASON_BYTES: Final = 64


class Attempt(NamedTuple):
    """A delivery that failed `at` (epoch ms), or the death of the message, for a `reason`."""

    at: int
    reason: str


class PastChange(NamedTuple):
    """A change that was made: its kind (`model/message.py`), when the log took its command (epoch ms; of a cancel: when
    the message ended), the due times (ms) that the message showed before and has after it (0, 0: it ended), and who
    asked (`model/caller.py`)."""

    kind: int
    at: int
    before: int = 0
    after: int = 0
    by: str = ""


class ChangeHistory(NamedTuple):
    """The changes of a message, oldest first. `left_out`: how many more there were between the first and the second."""

    changes: tuple[PastChange, ...] = ()
    left_out: int = 0

    def with_change(self, change: PastChange) -> ChangeHistory:
        """The history with one more change; the second one makes room for it where there are as many as may be."""
        changes = (*self.changes, change)
        if len(changes) <= MAX_CHANGES:
            return ChangeHistory(changes, self.left_out)
        return ChangeHistory(changes[:1] + changes[2:], self.left_out + 1)


UNCHANGED: Final = ChangeHistory()


class Notes(NamedTuple):
    """`tag`: empty where no job has changed the message."""

    tag: str = ""
    attempts: tuple[Attempt, ...] = ()
    history: ChangeHistory = UNCHANGED


def notes_of(row: bytes) -> Notes:
    """The notes of a row, which may be without its payload, or empty."""
    raw = _raw_notes(row)
    if not raw:
        return Notes()
    tag, attempts, *history = orjson.loads(raw)
    notes = Notes(tag, tuple(Attempt(*attempt) for attempt in attempts))
    if not history:
        return notes
    changes, left_out = history
    return notes._replace(history=ChangeHistory(tuple(PastChange(*change) for change in changes), left_out))


def tag_of(row: bytes) -> str:
    return notes_of(row).tag if row else ""


def with_change(row: bytes, change: PastChange, tag: str) -> bytes:
    """The row with one more change. `tag`: of the step of a job that it is a part of; empty for none."""
    notes = notes_of(row)
    return _with_notes(row, notes._replace(tag=tag or notes.tag, history=notes.history.with_change(change)))


def with_attempt(row: bytes, attempt: Attempt) -> bytes:
    """The row with one more failed attempt."""
    notes = notes_of(row)
    attempt = attempt._replace(reason=attempt.reason.encode()[:_REASON_BYTES].decode(errors="ignore"))
    return _with_notes(row, notes._replace(attempts=(*notes.attempts, attempt)[-MAX_ATTEMPTS:]))


def same_job(tag: str, other: str) -> bool:
    """Whether both tags are of steps of one job."""
    return tag.partition("/")[0] == other.partition("/")[0]


def _raw_notes(row: bytes) -> bytes:
    if not row:
        return b""
    _, frame_at, _, topic_bytes, label_bytes, name_bytes = ROW.unpack_from(row)
    start = ROW.size + topic_bytes + label_bytes
    return row[start : frame_at - name_bytes]


def _with_notes(row: bytes, notes: Notes) -> bytes:
    document: list[object] = [notes.tag, list(map(list, notes.attempts))]
    if notes.history.changes:
        document += [list(map(list, notes.history.changes)), notes.history.left_out]
    raw = orjson.dumps(document)
    attempt, frame_at, *others = ROW.unpack_from(row)
    _, topic_bytes, label_bytes, name_bytes = others
    start, end = ROW.size + topic_bytes + label_bytes, frame_at - name_bytes
    head = ROW.pack(attempt, frame_at + len(raw) - (end - start), *others)
    return head + row[ROW.size : start] + raw + row[end:]
