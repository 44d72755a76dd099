"""Incoming messages: a producer's message (`Draft`), and the commands that a shard reads.

The envelope of a command contains everything but the payload. It is in one record header, `duemq-command`, and the
payload is the record's value.

    envelope = kind (u8) | format (u8) | bytes of the envelope (u32) | due ms (u64) | expires ms (u64, 0 = never)
             | lengths of topic (u8), key (u16, 0xFFFF = none), labels (u16), name (u8)
             | header count (u16), bytes (u32)
             | topic | key | labels (joined by LF) | packed headers | name | fingerprint (16 bytes, if named)

The envelope for a change of an existing message has kind, format and size, followed by a first key (20 bytes) and a due
time (ms); with terms it also has the redrive limit (u16) | lengths of tag, topic (u8) | tag | topic. The record's
payload is the caller (`model/callers/caller.py`), or empty.

Any client with write access to the buffer topic can write an envelope, so nothing in it is trusted before
`read_schedule` or `read_change` has validated it. Later code in a shard never raises an error because of a producer's
bytes.

An envelope has its null marks (`model/messages/record.py`) as the value of a first header `duemq-null`, which no sender
may use. To version 0.1.0, an envelope with marks after the headers is malformed; with `duemq-null`, it delivers that
header and empty values.

To change the layout, raise `FORMAT` here and the version in `storage/data_folder.py`, and make the reader accept both
formats.
"""

from __future__ import annotations

import re
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from duemq.model.callers.caller import caller_bytes, read_caller
from duemq.model.messages.key import KEY_BYTES
from duemq.model.messages.names import FINGERPRINT_BYTES, NO_NAME, Name
from duemq.model.messages.record import HEAD, HEADER, NULL_HEADERS, NULL_VALUE, headers_end
from duemq.model.timing import LAST_MS
from duemq.model.topics.rules import RESERVED_TOPICS, TOPIC
from duemq.model.topics.topic_names import is_of_another

FORMAT = 1
MALFORMED, SCHEDULE, CANCEL, MOVE, DELIVER_NOW, REDRIVE, PURGE, MOVE_WITH_EXPIRY = range(8)
MOVES = (MOVE, MOVE_WITH_EXPIRY)
"""The kinds of changes that have a due time. The second kind also moves the message's expiry by the same time; it has
terms."""

ENVELOPE = Struct(">BBIQQBHHBHI")
NO_KEY = 0xFFFF

MAX_HEADERS = 65_000  # a frame counts its headers in 16 bits, and a delivery or a dead letter adds a few
_OWN_TOPICS = tuple(prefix.encode() for prefix in RESERVED_TOPICS)

COMMAND_HEADER = b"duemq-command"
NULLS = b"duemq-null"
_NULLS_AT = HEADER.size + len(NULLS)
_COMMAND_HEAD = HEADER.size + len(COMMAND_HEADER)
COMMAND_BODY = HEAD.size + _COMMAND_HEAD  # where the envelope starts in a command's frame


@lru_cache(maxsize=4_096)
def _command_start(size: int) -> bytes:
    """The start of the frame of a command whose envelope has this size."""
    return HEAD.pack(-1, 1, _COMMAND_HEAD + size) + HEADER.pack(len(COMMAND_HEADER), size) + COMMAND_HEADER


_CHANGE = Struct(f">BBI{KEY_BYTES}sQ")
_CHANGE_START = _command_start(_CHANGE.size)
_CHANGE_BYTES = COMMAND_BODY + _CHANGE.size
_TERMS = Struct(f">BBI{KEY_BYTES}sQHBB")
_TERMS_BYTES = COMMAND_BODY + _TERMS.size
_TAG = re.compile(rb"[a-z0-9]{1,32}/[0-9]{1,10}")
_TOPIC_AT = COMMAND_BODY + ENVELOPE.size  # position of the topic in a schedule's frame

_TOPIC = re.compile(TOPIC.pattern.encode())
_new_schedule = tuple.__new__  # takes half the time of `Schedule._make`


class Schedule(NamedTuple):
    """The head of a schedule command's envelope. `due`, `expires`: ms; all other fields are kinds, sizes (bytes) or
    counts."""

    kind: int
    format: int
    size: int
    due: int
    expires: int
    topic_bytes: int
    key_bytes: int
    label_bytes: int
    name_bytes: int
    header_count: int
    header_bytes: int


class Draft(NamedTuple):
    """A valid message from a producer. `due` is None for a message that goes straight to its topic."""

    topic: str
    payload: bytes | None
    due: int | None = None
    key: bytes | None = None
    header_count: int = 0
    headers: bytes = b""  # packed, see `model/messages/record.py`
    labels: tuple[str, ...] = ()
    expires: int = 0
    name: Name = NO_NAME
    fingerprint: bytes = b""


class Terms(NamedTuple):
    """The terms of a change. `tag`: the tag of its job step, by which a step is applied only once, however often it is
    sent; empty for none. For a redrive, `most_redrives`: how often a message may be redriven in total (0: without
    limit); `topic`: the topic to redrive to; empty: the message's own."""

    tag: str = ""
    most_redrives: int = 0
    topic: str = ""


class Change(NamedTuple):
    """A command about an existing message: cancel, move (with or without its expiry), deliver now, redrive or purge.

    `terms` None: an older version of duemq or a plain client sent the command. A redrive without terms leaves the
    message's expiry as it is. `by`: the caller (`model/callers/caller.py`), empty if unknown.
    """

    kind: int
    first_key: bytes
    due: int
    terms: Terms | None = None
    by: str = ""


def schedule_frame(draft: Draft, due: int) -> bytes:
    """The frame of a command that schedules a message for `due` (ms)."""
    to, payload, _, key, header_count, headers, words, expires, name, fingerprint = draft
    if payload is None or (headers and headers.endswith(NULL_HEADERS)):
        header_count, headers, payload = _with_nulls(header_count, headers, payload)
    topic = to.encode()
    labels = "\n".join(words).encode() if words else b""
    key_bytes, more = (NO_KEY, b"") if key is None else (len(key), key)
    if not name:
        fingerprint = b""
    size = ENVELOPE.size + len(topic) + len(more) + len(labels) + len(headers) + len(name) + len(fingerprint)
    return b"".join((
        _command_start(size),
        ENVELOPE.pack(
            SCHEDULE, FORMAT, size, due, expires, len(topic), key_bytes, len(labels), len(name), header_count,
            len(headers),
        ),
        topic, more, labels, headers, name, fingerprint, payload,
    ))  # fmt: skip


def _with_nulls(count: int, headers: bytes, payload: bytes | None) -> tuple[int, bytes, bytes]:
    """The header count, headers and payload of an envelope, for a message that may have nulls."""
    end = headers_end(headers, 0, count)
    nulls = headers[end:] + (NULL_VALUE if payload is None else b"")
    if nulls and count < MAX_HEADERS:  # else there is no room for the marks, and nulls become empty values
        return count + 1, HEADER.pack(len(NULLS), len(nulls)) + NULLS + nulls + headers[:end], payload or b""
    return count, headers[:end], payload or b""


def headers_in(count: int, packed: bytes) -> tuple[int, bytes]:
    """The headers of an envelope as a frame has them. If the first header has the null marks, these go after the
    headers instead."""
    name_bytes, mark_bytes = HEADER.unpack_from(packed)
    if name_bytes != len(NULLS):
        return count, packed
    end = _NULLS_AT + mark_bytes
    return count - 1, packed[end:] + packed[_NULLS_AT:end]


def change_frame(kind: int, first_key: bytes, due: int = 0, terms: Terms | None = None, by: str = "") -> bytes:
    """The frame of a cancel, move (with `due` in ms), deliver-now or redrive; with terms also of a purge, or of a move
    that also moves the expiry.

    `by`: see `Change`.
    """
    if terms is None:
        return _CHANGE_START + _CHANGE.pack(kind, FORMAT, _CHANGE.size, first_key, due) + caller_bytes(by)
    tag, topic = terms.tag.encode(), terms.topic.encode()
    size = _TERMS.size + len(tag) + len(topic)
    fields = _TERMS.pack(kind, FORMAT, size, first_key, due, terms.most_redrives, len(tag), len(topic))
    return _command_start(size) + fields + tag + topic + caller_bytes(by)


def read_schedule(frame: bytes) -> Schedule | None:
    """The head of a schedule command; None for any other record, and for a malformed envelope."""
    if len(frame) < _TOPIC_AT:
        return None
    _, _, size, due, expires, topic, key, labels, named, header_count, headers = fields = ENVELOPE.unpack_from(
        frame, COMMAND_BODY
    )
    end = ENVELOPE.size + topic + (0 if key == NO_KEY else key) + labels + headers
    if (
        size != (end + named + FINGERPRINT_BYTES if named else end)
        or len(frame) < COMMAND_BODY + size
        or not frame.startswith(_schedule_start(size))
        or due > LAST_MS
        or expires > LAST_MS
        or not is_topic(frame[_TOPIC_AT : _TOPIC_AT + topic])
    ):
        return None
    if headers or header_count or labels:
        end += COMMAND_BODY
        at = end - headers
        if header_count > MAX_HEADERS or not are_headers(frame, at, end, header_count):
            return None
        if labels and not _is_text(frame[at - labels : at]):
            return None
    return _new_schedule(Schedule, fields)


def read_change(frame: bytes) -> Change | None:
    """A command about an existing message; None for any other record."""
    if len(frame) < _CHANGE_BYTES:
        return None
    if not frame.startswith(_CHANGE_START):
        return _read_terms(frame)
    kind, form, size, first_key, due = _CHANGE.unpack_from(frame, COMMAND_BODY)
    if form != FORMAT or size != _CHANGE.size or not CANCEL <= kind <= REDRIVE or due > LAST_MS:
        return None
    return Change(kind, first_key, due, None, read_caller(frame[_CHANGE_BYTES:]))


def _read_terms(frame: bytes) -> Change | None:
    if len(frame) < _TERMS_BYTES:
        return None
    kind, form, size, first_key, due, most_redrives, tag_bytes, topic_bytes = _TERMS.unpack_from(frame, COMMAND_BODY)
    middle, end = _TERMS_BYTES + tag_bytes, _TERMS_BYTES + tag_bytes + topic_bytes
    tag, topic = frame[_TERMS_BYTES:middle], frame[middle:end]
    if (
        form != FORMAT or size != _TERMS.size + tag_bytes + topic_bytes or len(frame) < end
        or not frame.startswith(_command_start(size)) or not CANCEL <= kind <= MOVE_WITH_EXPIRY or due > LAST_MS
        or (tag and not _TAG.fullmatch(tag)) or (topic and not is_topic(topic))
    ):  # fmt: skip
        return None
    terms = Terms(tag.decode(), most_redrives, topic.decode())
    return Change(kind, first_key, due, terms, read_caller(frame[end:]))


@lru_cache(maxsize=4_096)
def _schedule_start(size: int) -> bytes:
    """The start of the frame of a schedule whose envelope has this size, up to the due time."""
    return _command_start(size) + ENVELOPE.pack(SCHEDULE, FORMAT, size, *(0,) * 8)[:6]


@lru_cache(maxsize=10_000)
def is_topic(name: bytes) -> bool:
    """Whether messages can go to a topic with this name, if it exists."""
    return (
        _TOPIC.fullmatch(name) is not None
        and name not in (b".", b"..")
        and not name.startswith(_OWN_TOPICS)
        and not is_of_another(name.decode())
    )


def are_headers(packed: bytes, start: int, end: int, count: int) -> bool:
    """Whether `packed[start:end]` is exactly `count` headers (`model/messages/record.py`), with names that are text."""
    at, lengths, size = start, HEADER.unpack_from, HEADER.size
    try:
        for _ in range(count):
            name_bytes, value_bytes = lengths(packed, at)
            at += size + name_bytes + value_bytes
    except StructError:
        return False
    if at != end or end > len(packed):
        return False
    if packed[start:end].isascii():  # the lengths of short names and values are ASCII, too
        return True
    for _ in range(count):
        name_bytes, value_bytes = lengths(packed, start)
        middle = start + size
        start = middle + name_bytes + value_bytes
        if not _is_text(packed[middle : middle + name_bytes]):
            return False
    return True


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_name(frame: bytes, fields: Schedule) -> tuple[Name, bytes]:
    """The name and fingerprint in a schedule command that has a name."""
    end = COMMAND_BODY + fields.size
    middle = end - FINGERPRINT_BYTES
    name: Any = frame[middle - fields.name_bytes : middle]  # a `Name`; a call of `Name` would double the time
    return name, frame[middle:end]
