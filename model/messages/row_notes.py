"""Notes that a shard keeps in a row: the jobs that changed the message, its failed attempts and its changes.

Notes are JSON before the name in the row (`model/messages/row.py`), and consumers never get them. Most rows have none.

    notes = [tags, [[at ms, reason], ...]]
          | [tags, [[at ms, reason], ...], [[kind, at ms, before ms, after ms, by], ...], changes left out]

A tag is `JOB/STEP` in ASCII: the job step that made a change (docs/adr/0041). There is one tag per job, the latest
first, separated by blanks (docs/adr/0051). docs/adr/0047 describes the changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from duemq.model.messages.row import ROW

MAX_ATTEMPTS: Final = 40
"""The most failed attempts that a row keeps. It keeps the last ones."""

MAX_CHANGES: Final = 16
"""The most changes that a row keeps. It keeps the first one and the last 15."""

MAX_TAGS: Final = 16
"""The most job tags that a row keeps."""

_REASON_BYTES: Final = 64


class Attempt(NamedTuple):
    """A delivery that failed, or the death of the message, `at` this time (epoch ms) for a `reason`."""

    at: int
    reason: str


class PastChange(NamedTuple):
    """A past change: its kind (`model/messages/message.py`), when the log appended its command (epoch ms; for a cancel:
    when the message ended), the due times (ms) before and after the change (0, 0: the message ended), and its caller
    (`model/callers/caller.py`)."""

    kind: int
    at: int
    before: int = 0
    after: int = 0
    by: str = ""


class ChangeHistory(NamedTuple):
    """The changes of a message, oldest first. `left_out`: how many more there were between the first and the second
    one."""

    changes: tuple[PastChange, ...] = ()
    left_out: int = 0

    def with_change(self, change: PastChange) -> ChangeHistory:
        """The history with one more change. A full history drops its second change."""
        changes = (*self.changes, change)
        if len(changes) <= MAX_CHANGES:
            return ChangeHistory(changes, self.left_out)
        return ChangeHistory(changes[:1] + changes[2:], self.left_out + 1)


UNCHANGED: Final = ChangeHistory()


class Notes(NamedTuple):
    """`tags`: the tags of the job steps that changed the message, one per job, the latest first."""

    tags: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    history: ChangeHistory = UNCHANGED


def notes_of(row: bytes) -> Notes:
    """The notes in a row. The row may lack its payload, or be empty."""
    raw = _raw_notes(row)
    if not raw:
        return Notes()
    tags, attempts, *history = orjson.loads(raw)
    notes = Notes(tuple(tags.split()), tuple(Attempt(*attempt) for attempt in attempts))
    if not history:
        return notes
    changes, left_out = history
    return notes._replace(history=ChangeHistory(tuple(PastChange(*change) for change in changes), left_out))


def tags_of(row: bytes) -> tuple[str, ...]:
    return notes_of(row).tags


def with_change(row: bytes, change: PastChange, tag: str) -> bytes:
    """The row with one more change. `tag`: the tag of the change's job step; empty for none."""
    notes = notes_of(row)
    tags = _with_tag(notes.tags, tag) if tag else notes.tags
    return _with_notes(row, notes._replace(tags=tags, history=notes.history.with_change(change)))


def with_attempt(row: bytes, attempt: Attempt) -> bytes:
    """The row with one more failed attempt."""
    notes = notes_of(row)
    attempt = attempt._replace(reason=attempt.reason.encode()[:_REASON_BYTES].decode(errors="ignore"))
    return _with_notes(row, notes._replace(attempts=(*notes.attempts, attempt)[-MAX_ATTEMPTS:]))


def same_job(tag: str, other: str) -> bool:
    """Whether both tags belong to the same job."""
    return tag.partition("/")[0] == other.partition("/")[0]


def earlier_step(tags: Sequence[str], tag: str) -> str | None:
    """The tag with which the job in `tag` has already changed a message with these `tags`; None if the job has not.

    Empty if this is unknown. A full list drops the lowest job id, and ids are in the order in which jobs began. So if a
    job's id is below all ids in a full list, it may have been dropped, and the job does not change the message again.
    """
    for one in tags:
        if same_job(one, tag):
            return one
    return "" if len(tags) >= MAX_TAGS and tag < min(tags) else None


def _with_tag(tags: Sequence[str], tag: str) -> tuple[str, ...]:
    others = [one for one in tags if not same_job(one, tag)]
    if len(others) >= MAX_TAGS:
        others.remove(min(others))
    return (tag, *others)


def _raw_notes(row: bytes) -> bytes:
    if not row:
        return b""
    _, frame_at, _, topic_bytes, label_bytes, name_bytes = ROW.unpack_from(row)
    start = ROW.size + topic_bytes + label_bytes
    return row[start : frame_at - name_bytes]


def _with_notes(row: bytes, notes: Notes) -> bytes:
    document: list[object] = [" ".join(notes.tags), list(map(list, notes.attempts))]
    if notes.history.changes:
        document += [list(map(list, notes.history.changes)), notes.history.left_out]
    raw = orjson.dumps(document)
    attempt, frame_at, *others = ROW.unpack_from(row)
    _, topic_bytes, label_bytes, name_bytes = others
    start, end = ROW.size + topic_bytes + label_bytes, frame_at - name_bytes
    head = ROW.pack(attempt, frame_at + len(raw) - (end - start), *others)
    return head + row[ROW.size : start] + raw + row[end:]
