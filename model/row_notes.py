"""What a shard notes in a row beside the message: which job changed it last, and the attempts that failed.

Notes stand in front of the row's name (`model/row.py`), as JSON, and consumers never get them. Most rows have none.

    notes = [tag, [[at ms, reason], ...]]

A tag is `JOB/STEP` in ASCII: the job of whose step the last change was a part (docs/adr/0041).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import orjson

from duemq.model.row import ROW

MAX_ATTEMPTS: Final = 40
"""How many failed attempts a row tells of: the last ones."""

_REASON_BYTES: Final = 64


class Attempt(NamedTuple):
    """A delivery that failed `at` (epoch ms), or the death of the message, for a `reason`."""

    at: int
    reason: str


class Notes(NamedTuple):
    """`tag`: empty where no job has changed the message."""

    tag: str = ""
    attempts: tuple[Attempt, ...] = ()


def notes_of(row: bytes) -> Notes:
    """The notes of a row, which may be without its payload, or empty."""
    raw = _raw_notes(row)
    if not raw:
        return Notes()
    tag, attempts = orjson.loads(raw)
    return Notes(tag, tuple(Attempt(at, reason) for at, reason in attempts))


def tag_of(row: bytes) -> str:
    return notes_of(row).tag if row else ""


def with_tag(row: bytes, tag: str) -> bytes:
    """The row with this tag. It stays as it is where there is none to note."""
    return _with_notes(row, notes_of(row)._replace(tag=tag)) if tag and row else row


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
    raw = orjson.dumps([notes.tag, [tuple(attempt) for attempt in notes.attempts]])
    attempt, frame_at, *others = ROW.unpack_from(row)
    _, topic_bytes, label_bytes, name_bytes = others
    start, end = ROW.size + topic_bytes + label_bytes, frame_at - name_bytes
    head = ROW.pack(attempt, frame_at + len(raw) - (end - start), *others)
    return head + row[ROW.size : start] + raw + row[end:]
