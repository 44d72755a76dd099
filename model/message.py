"""A message on its way in: what a producer said (`Draft`), and the commands a shard gets.

The envelope of a command holds everything but the payload. It travels in one record header, `duemq-command`, beside
the payload as the record's value.

    envelope = kind (u8) | format (u8) | its own bytes (u32) | due ms (u64) | expires ms (u64, 0 = never)
             | lengths of topic (u8), key (u16, 0xFFFF = none), labels (u16), name (u8)
             | header count (u16), bytes (u32)
             | topic | key | labels (joined by LF) | packed headers | name | fingerprint (16 bytes, if named)

Changing the layout: raise `FORMAT` here and the folder's version in `storage/folder.py`, and teach the reader both.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from duemq.model.key import KEY_BYTES
from duemq.model.record import HEAD, HEADER

FORMAT = 1
MALFORMED, SCHEDULE, CANCEL, MOVE, DELIVER_NOW, REDRIVE = range(6)

ENVELOPE = Struct(">BBIQQBHHBHI")
FINGERPRINT_BYTES = 16
NO_KEY = 0xFFFF

COMMAND_HEADER = b"duemq-command"
_COMMAND_HEAD = HEADER.size + len(COMMAND_HEADER)
_COMMAND_START = HEAD.pack(-1, 1, 0)[:6]
_COMMAND_AT = HEAD.size + HEADER.size
COMMAND_BODY = _COMMAND_AT + len(COMMAND_HEADER)  # where the envelope starts in a command's frame
_CHANGE = Struct(f">BBI{KEY_BYTES}sQ")
_DUE = slice(COMMAND_BODY + 6, COMMAND_BODY + 14)
_NAME_BYTES_AT = COMMAND_BODY + 27
_SHORTEST = COMMAND_BODY + min(_CHANGE.size, ENVELOPE.size)


class Draft(NamedTuple):
    """A valid message from a producer. `due` is None for one that goes straight to its target."""

    topic: str
    payload: bytes
    due: int | None = None
    key: bytes | None = None
    header_count: int = 0
    headers: bytes = b""  # packed, see `model/record.py`
    labels: tuple[str, ...] = ()
    expires: int = 0
    name: bytes = b""
    fingerprint: bytes = b""


class Change(NamedTuple):
    """A command about an existing message: cancel, move, deliver-now or redrive."""

    kind: int
    first_key: bytes
    due: int


def schedule_frame(draft: Draft, due: int) -> bytes:
    """The frame of a schedule command that is due at `due` ms."""
    topic, key, name = draft.topic.encode(), draft.key, draft.name
    labels = "\n".join(draft.labels).encode() if draft.labels else b""
    key_bytes, more = (NO_KEY, b"") if key is None else (len(key), key)
    fingerprint = draft.fingerprint if name else b""
    size = ENVELOPE.size + len(topic) + len(more) + len(labels) + len(draft.headers) + len(name) + len(fingerprint)
    return b"".join((
        HEAD.pack(-1, 1, _COMMAND_HEAD + size), HEADER.pack(len(COMMAND_HEADER), size), COMMAND_HEADER,
        ENVELOPE.pack(
            SCHEDULE, FORMAT, size, due, draft.expires, len(topic), key_bytes, len(labels), len(name),
            draft.header_count, len(draft.headers),
        ),
        topic, more, labels, draft.headers, name, fingerprint, draft.payload,
    ))  # fmt: skip


def change_frame(kind: int, first_key: bytes, due: int = 0) -> bytes:
    """The frame of a cancel, move (with `due` in ms), deliver-now or redrive."""
    head = HEAD.pack(-1, 1, _COMMAND_HEAD + _CHANGE.size) + HEADER.pack(len(COMMAND_HEADER), _CHANGE.size)
    return head + COMMAND_HEADER + _CHANGE.pack(kind, FORMAT, _CHANGE.size, first_key, due)


def kind_of(frame: bytes) -> int:
    """Which command a frame is; MALFORMED for a record that is none, such as another program's."""
    if (
        len(frame) >= _SHORTEST
        and frame[_COMMAND_AT:COMMAND_BODY] == COMMAND_HEADER
        and frame[:6] == _COMMAND_START
        and frame[COMMAND_BODY + 1] == FORMAT
        and frame[COMMAND_BODY] <= REDRIVE
    ):
        return frame[COMMAND_BODY]
    return MALFORMED


def due_in(frame: bytes) -> int:
    """The due time (ms) of a schedule command."""
    return int.from_bytes(frame[_DUE], "big")


def is_named(frame: bytes) -> bool:
    """Whether a schedule command has a name."""
    return frame[_NAME_BYTES_AT] != 0


def read_change(frame: bytes) -> Change:
    kind, _, _, first_key, due = _CHANGE.unpack_from(frame, COMMAND_BODY)
    return Change(kind, first_key, due)


def read_name(envelope: bytes, start: int = 0) -> tuple[bytes, bytes]:
    """Name and fingerprint of a schedule envelope that begins at `start`; both empty for one without a name."""
    fields = ENVELOPE.unpack_from(envelope, start)
    name_bytes = fields[8]
    if not name_bytes:
        return b"", b""
    end = start + fields[2]
    middle = end - FINGERPRINT_BYTES
    return envelope[middle - name_bytes : middle], envelope[middle:end]
