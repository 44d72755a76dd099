"""A message on its way: what a producer said (`Draft`), its envelope, and its row in the store.

The envelope holds everything but the payload. It travels in one record header, `duemq-command`, beside the payload as
the record's value, and is stored byte for byte: nothing is parsed and written again between ingress and delivery.

    envelope = kind (u8) | format (u8) | its own bytes (u32) | due ms (u64) | expires ms (u64, 0 = never)
             | lengths of topic (u8), key (u16, 0xFFFF = none), labels (u16), name (u8) | header count (u16), bytes (u32)
             | topic | key | labels (joined by LF) | packed headers | name | fingerprint (16 bytes, if named)
    row      = flags (u8) | attempt (u16) | [first key (20)] | [shown due (u64)] | envelope | payload

A moved message keeps the key its id was made from (`first key`); deliver-now keeps the due time that is shown.
Changing a layout: raise `FORMAT` here and the folder's version in `storage/folder.py`, and teach the reader both.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from duemq.model.key import KEY_BYTES, due_of
from duemq.model.record import HEAD, HEADER, Headers, unpack_headers

FORMAT = 1
SCHEDULE, CANCEL, MOVE, DELIVER_NOW, REDRIVE = 1, 2, 3, 4, 5

ENVELOPE = Struct(">BBIQQBHHBHI")
FINGERPRINT_BYTES = 16
NO_KEY = 0xFFFF

COMMAND_HEADER = b"duemq-command"
_COMMAND_START = HEAD.pack(-1, 1, 0)[:6]
_COMMAND_AT = HEAD.size + HEADER.size
COMMAND_BODY = _COMMAND_AT + len(COMMAND_HEADER)  # where the envelope starts in a command's frame
_CHANGE = Struct(f">BBI{KEY_BYTES}sQ")

ROW = Struct(">BH")
FIRST_KEY, SHOWN_DUE = 1, 2
PLAIN_ROW = ROW.pack(0, 0)  # of a message that was neither moved nor tried: the envelope follows at once

# Where the envelope has these, in bytes.
_EXPIRES, _TOPIC_BYTES = 14, 22
PLAIN_EXPIRES = slice(ROW.size + _EXPIRES, ROW.size + _EXPIRES + 8)
_PLAIN_TOPIC = ROW.size + ENVELOPE.size


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


class Row(NamedTuple):
    """A pending (or kept) message as the store holds it."""

    topic: str
    payload: bytes
    due: int  # shown: the current due time, or the original one after deliver-now
    key: bytes | None
    header_count: int
    headers: bytes
    labels: tuple[str, ...]
    expires: int
    name: bytes
    attempt: int
    first_key: bytes | None

    def header_pairs(self) -> Headers:
        return unpack_headers(self.headers, 0, self.header_count)


class Change(NamedTuple):
    """A command about an existing message: cancel, move, deliver-now or redrive."""

    kind: int
    first_key: bytes
    due: int


def envelope_of(draft: Draft, due: int) -> bytes:
    """The envelope of a schedule command that is due at `due` ms."""
    topic, key, name = draft.topic.encode(), draft.key, draft.name
    labels = "\n".join(draft.labels).encode() if draft.labels else b""
    body = b"".join((topic, key or b"", labels, draft.headers, name, draft.fingerprint if name else b""))
    return (
        ENVELOPE.pack(
            SCHEDULE, FORMAT, ENVELOPE.size + len(body), due, draft.expires, len(topic),
            NO_KEY if key is None else len(key), len(labels), len(name), draft.header_count, len(draft.headers),
        )
        + body
    )  # fmt: skip


def command_frame(envelope: bytes, payload: bytes = b"") -> bytes:
    """The frame of a command: one header with the envelope, the payload as value, no key."""
    header_bytes = HEADER.size + len(COMMAND_HEADER) + len(envelope)
    return b"".join(
        (
            HEAD.pack(-1, 1, header_bytes),
            HEADER.pack(len(COMMAND_HEADER), len(envelope)),
            COMMAND_HEADER,
            envelope,
            payload,
        )
    )


def schedule_frame(draft: Draft, due: int) -> bytes:
    return command_frame(envelope_of(draft, due), draft.payload)


def change_frame(kind: int, first_key: bytes, due: int = 0) -> bytes:
    """The frame of a cancel, move (with `due` in ms), deliver-now or redrive."""
    return command_frame(_CHANGE.pack(kind, FORMAT, _CHANGE.size, first_key, due))


def is_command(frame: bytes) -> bool:
    """Whether the frame was made by `command_frame`. Others are plain records from a broker's own clients."""
    return frame[:6] == _COMMAND_START and frame[_COMMAND_AT:COMMAND_BODY] == COMMAND_HEADER


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


def row_after(row: bytes, current: bytes, *, shown_due: int | None = None, attempt: int | None = None) -> bytes:
    """The row of a message that leaves the key `current` for another one.

    `shown_due` keeps a due time that differs from the new key's; `attempt` counts deliveries that were tried.
    """
    flags, tried = ROW.unpack_from(row)
    start = ROW.size
    first_key = current
    if flags & FIRST_KEY:
        first_key = row[start : start + KEY_BYTES]
        start += KEY_BYTES
    if flags & SHOWN_DUE:
        start += 8
    head = ROW.pack(FIRST_KEY | (0 if shown_due is None else SHOWN_DUE), tried if attempt is None else attempt)
    return b"".join((head, first_key, b"" if shown_due is None else shown_due.to_bytes(8, "big"), row[start:]))


def first_key_of(key: bytes, row: bytes) -> bytes:
    """The key a message's id was made from; `key` is the one its row is stored under."""
    return row[ROW.size : ROW.size + KEY_BYTES] if row[0] & FIRST_KEY else key


def attempt_of(row: bytes) -> int:
    """Deliveries that were tried and failed."""
    return int.from_bytes(row[1:3], "big")


def shown_due_of(key: bytes, row: bytes) -> int:
    """The due time (ms) a message shows: its key's, unless the row keeps another."""
    if not row[0] & SHOWN_DUE:
        return due_of(key)
    start = ROW.size + (KEY_BYTES if row[0] & FIRST_KEY else 0)
    return int.from_bytes(row[start : start + 8], "big")


def read_row(key: bytes, row: bytes) -> Row:
    """Everything a row says. `key` is the key it is stored under."""
    flags, attempt = ROW.unpack_from(row)
    start = ROW.size
    first_key, due = None, due_of(key)
    if flags & FIRST_KEY:
        first_key = row[start : start + KEY_BYTES]
        start += KEY_BYTES
    if flags & SHOWN_DUE:
        due = int.from_bytes(row[start : start + 8], "big")
        start += 8
    (_, _, size, _, expires, topic_bytes, key_bytes, label_bytes, name_bytes, header_count, header_bytes) = (
        ENVELOPE.unpack_from(row, start)
    )
    payload = row[start + size :]
    start += ENVELOPE.size
    topic = row[start : start + topic_bytes].decode()
    start += topic_bytes
    message_key = None
    if key_bytes != NO_KEY:
        message_key = row[start : start + key_bytes]
        start += key_bytes
    labels = tuple(row[start : start + label_bytes].decode().split("\n")) if label_bytes else ()
    start += label_bytes
    headers = row[start : start + header_bytes]
    start += header_bytes
    name = row[start : start + name_bytes]
    return Row(topic, payload, due, message_key, header_count, headers, labels, expires, name, attempt, first_key)


def name_of(row: bytes) -> bytes:
    """The name of a message, empty for one without."""
    return read_name(row, _envelope_at(row))[0]


def topic_of(row: bytes) -> bytes:
    """The target of a message."""
    start = _envelope_at(row)
    return row[start + ENVELOPE.size : start + ENVELOPE.size + row[start + _TOPIC_BYTES]]


def topics_of(due: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    """The targets of many messages, given as keys and rows."""
    start, length = _PLAIN_TOPIC, ROW.size + _TOPIC_BYTES
    return {topic_of(row) if row[0] else row[start : start + row[length]] for _, row in due}


def expires_of(row: bytes) -> int:
    """When a message expires, epoch ms; 0 = never."""
    start = _envelope_at(row) + _EXPIRES
    return int.from_bytes(row[start : start + 8], "big")


def without_payload(row: bytes) -> bytes:
    """The row of an ended message: all but its payload."""
    start = _envelope_at(row)
    return row[: start + ENVELOPE.unpack_from(row, start)[2]]


def _envelope_at(row: bytes) -> int:
    flags = row[0]
    return ROW.size + (KEY_BYTES if flags & FIRST_KEY else 0) + (8 if flags & SHOWN_DUE else 0)
