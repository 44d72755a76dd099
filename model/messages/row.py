"""The row of a message in the store: the fields that a shard needs, then the frame that consumers will get.

The frame is built once, when the message is scheduled, so delivering thousands in one millisecond is only slicing.

    row   = attempts that failed (u16) | where the frame begins (u32) | expires ms (u64, 0 = never)
          | lengths of topic (u8), labels (u16), name (u8) | topic | labels (joined by LF)
          | notes (`model/messages/row_notes.py`) | name | frame
    frame = a record (`model/messages/record.py`) whose first headers are duemq-id, duemq-due, duemq-attempt,
            duemq-redrives after a redrive, and duemq-labels if it has labels; then come the sender's headers

`duemq-due` is the due time that a message shows: the one in its key, or the original one after deliver-now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from duemq.model.messages.dead_letters import REDRIVEN_ID
from duemq.model.messages.ids import peek
from duemq.model.messages.message import COMMAND_BODY, ENVELOPE, NO_KEY, NULLS, Draft, Schedule, headers_in
from duemq.model.messages.record import (
    HEAD,
    HEADER,
    NULL_VALUE,
    Headers,
    frame_of,
    headers_end,
    pack_headers,
    unpack_headers,
    unpack_record,
)
from duemq.model.topics.rules import ID_CHARS, RESERVED_HEADERS

ROW = Struct(">HIQBHB")
_EXPIRES = slice(6, 14)
_NEVER = bytes(8)
TOPIC_BYTES_AT = 14  # the position of the topic's length in a row
_SYSTEM_HEADERS = 3
_REDRIVES_CHARS = 9
_OWN_HEADERS = RESERVED_HEADERS.encode()
_FIRST_NAME = slice(HEADER.size, HEADER.size + len(NULLS))
_REDRIVES = "duemq-redrives"


def _header_start(name: str, value_bytes: int) -> bytes:
    return HEADER.pack(len(name), value_bytes) + name.encode()


# The system headers for a first delivery that is due between 2001 and 2286: one format call fills in their fixed
# layout.
_ID_AT = len(_header_start("duemq-id", ID_CHARS))
_DUE_CHARS = 13
_DUE_AT = _ID_AT + ID_CHARS + len(_header_start("duemq-due", _DUE_CHARS))
_SYSTEM = (
    _header_start("duemq-id", ID_CHARS)
    + b"%b"
    + _header_start("duemq-due", _DUE_CHARS)
    + b"%d"
    + _header_start("duemq-attempt", 1)
    + b"1"
)
_SYSTEM_BYTES = len(_SYSTEM % (bytes(ID_CHARS), 10**12))


class Row(NamedTuple):
    """The content of a row. `headers`: those of the sender; `due`: the shown due time in ms."""

    id: str
    topic: str
    payload: bytes | None
    due: int
    key: bytes | None
    headers: Headers
    labels: tuple[str, ...]
    expires: int
    name: bytes
    attempt: int
    redrives: int


def row_of(command: bytes, id_: bytes, fields: Schedule | None = None) -> bytes:
    """The row for a schedule command's frame, for a message with this id (32 ASCII bytes).

    `fields`: the result of `read_schedule`, if the caller has it.
    """
    _, _, size, due, expires, topic_bytes, key_bytes, label_bytes, name_bytes, header_count, header_bytes = (
        fields or ENVELOPE.unpack_from(command, COMMAND_BODY)
    )
    start = COMMAND_BODY + ENVELOPE.size
    end = start + topic_bytes
    topic = command[start:end]
    if not (label_bytes or name_bytes or header_bytes or expires) and due in PLAIN_DUES:
        payload = command[COMMAND_BODY + size :]
        if key_bytes == NO_KEY:
            return plain_row(topic, -1) % (b"", id_, due, payload)
        return plain_row(topic, key_bytes) % (command[end : end + key_bytes], id_, due, payload)
    labels = name = headers = b""
    key = None
    if key_bytes != NO_KEY:
        key = command[end : end + key_bytes]
        end += key_bytes
    if label_bytes:
        labels = command[end : end + label_bytes]
        end += label_bytes
    if header_bytes:
        headers = command[end : end + header_bytes]
        end += header_bytes
        if headers[_FIRST_NAME] == NULLS:
            header_count, headers = headers_in(header_count, headers)
    if name_bytes:
        name = command[end : end + name_bytes]
    return new_row(id_, due, topic, command[COMMAND_BODY + size :], key, header_count, headers, labels, expires, name)


def new_row(
    id_: bytes, due: int, topic: bytes, payload: bytes, key: bytes | None = None, header_count: int = 0,
    headers: bytes = b"", labels: bytes = b"", expires: int = 0, name: bytes = b"",
) -> bytes:  # fmt: skip
    """The row of a message that has not failed. `headers`: the sender's headers, packed, with null marks; `labels`:
    joined by LF."""
    if _OWN_HEADERS in headers:
        header_count, headers = _senders_headers(headers, header_count)
    count, system = system_headers(id_, due, 1, labels)
    frame_at = ROW.size + len(topic) + len(labels) + len(name)
    return b"".join((
        ROW.pack(0, frame_at, expires, len(topic), len(labels), len(name)), topic, labels, name,
        HEAD.pack(-1 if key is None else len(key), count + header_count, len(system) + len(headers)),
        key or b"", system, headers, payload,
    ))  # fmt: skip


def _senders_headers(packed: bytes, count: int) -> tuple[int, bytes]:
    """The number of headers, and the packed headers, of an envelope without those that only duemq may write. A sender's
    header with such a name would be mistaken for one from duemq."""
    headers = unpack_headers(packed, 0, count, len(packed))
    senders = [one for one in headers if one[0] == REDRIVEN_ID or not one[0].startswith(RESERVED_HEADERS)]
    is_null = packed[headers_end(packed, 0, count) :].endswith(NULL_VALUE)
    count, packed = pack_headers(senders)
    return count, packed + NULL_VALUE if is_null else packed


PLAIN_DUES = range(10**12, 10**13)
"""The due times (ms) for which `plain_row` can be used: between 2001 and 2286."""


@lru_cache(maxsize=4_096)
def plain_row(topic: bytes, key_bytes: int) -> bytes:
    """A format for the rows of messages without headers, labels, expiry and name.

    `plain_row(topic, len(key)) % (key, id, due, payload)` is the row. If there is no key, pass -1 for its length and
    b"" for the key.
    """
    start = ROW.pack(0, ROW.size + len(topic), 0, len(topic), 0, 0) + topic
    start += HEAD.pack(key_bytes, _SYSTEM_HEADERS, _SYSTEM_BYTES)
    return start.replace(b"%", b"%%") + b"%b" + _SYSTEM + b"%b"


def system_headers(id_: bytes, due: int, attempt: int, labels: bytes = b"") -> tuple[int, bytes]:
    """The headers at the beginning of every delivered record: their number, and their packed form. `id_`: 32 bytes;
    `labels`: joined by LF."""
    if attempt == 1 and due in PLAIN_DUES:
        count, system = _SYSTEM_HEADERS, _SYSTEM % (id_, due)
    else:
        pairs = (("duemq-id", id_), ("duemq-due", b"%d" % due), ("duemq-attempt", b"%d" % attempt))
        count, system = pack_headers(pairs)
    if labels:
        return count + 1, system + _header_start("duemq-labels", len(labels)) + labels.replace(b"\n", b",")
    return count, system


def direct_frame(draft: Draft, id_: bytes, at: int) -> bytes:
    """The frame of a message without delay, which goes to its topic at once."""
    count, system = system_headers(id_, at, 1, "\n".join(draft.labels).encode())
    return frame_of(draft.key, count + draft.header_count, system + draft.headers, draft.payload)


def frame_in(row: bytes) -> bytes:
    """The frame in a row, which consumers will get."""
    return row[int.from_bytes(row[2:6], "big") :]


def message_key_in(row: bytes) -> bytes | None:
    """The key of the record that consumers get."""
    at = int.from_bytes(row[2:6], "big")
    key_bytes = int.from_bytes(row[at : at + 4], "big", signed=True)
    return None if key_bytes < 0 else row[at + HEAD.size : at + HEAD.size + key_bytes]


def read_row(row: bytes) -> Row:
    attempt, frame_at, expires, topic_bytes, label_bytes, name_bytes = ROW.unpack_from(row)
    topic_end = ROW.size + topic_bytes
    labels = tuple(row[topic_end : topic_end + label_bytes].decode().split("\n")) if label_bytes else ()
    record = unpack_record(row[frame_at:])
    id_, due = (value or b"" for _, value in record.headers[:2])
    redrives = _redrives_in(record.headers)
    return Row(
        id=id_.decode(), topic=row[ROW.size : topic_end].decode(), payload=record.value, due=int(due), key=record.key,
        headers=record.headers[_SYSTEM_HEADERS + bool(redrives) + bool(labels) :], labels=labels, expires=expires,
        name=row[frame_at - name_bytes : frame_at], attempt=attempt, redrives=redrives,
    )  # fmt: skip


def _redrives_in(headers: Headers) -> int:
    """How often a message was redriven, from the headers of its frame. If the value is not a number, a sender wrote it
    through an older version of duemq."""
    name, value = headers[_SYSTEM_HEADERS] if len(headers) > _SYSTEM_HEADERS else ("", b"")
    return int(value) if name == _REDRIVES and value and value.isdigit() and len(value) <= _REDRIVES_CHARS else 0


def redrives_of(row: bytes) -> int:
    """How often a message was redriven."""
    return _redrives_in(unpack_record(frame_in(without_payload(row))).headers)


def id_of(row: bytes) -> bytes:
    """The message's id, as ASCII bytes."""
    at = int.from_bytes(row[2:6], "big")
    start = at + HEAD.size + max(int.from_bytes(row[at : at + 4], "big", signed=True), 0) + _ID_AT
    return row[start : start + ID_CHARS]


def shown_due(row: bytes) -> int:
    """The due time (ms) that a message shows."""
    at = int.from_bytes(row[2:6], "big")
    start = at + HEAD.size + max(int.from_bytes(row[at : at + 4], "big", signed=True), 0) + _ID_AT + ID_CHARS
    name_bytes, value_bytes = HEADER.unpack_from(row, start)
    start += HEADER.size + name_bytes
    return int(row[start : start + value_bytes])


def shows_due(row: bytes, due: int) -> bool:
    """Whether a message shows this due time (ms). Also False for some times before 2001 or after 2286."""
    at = int.from_bytes(row[2:6], "big")
    start = at + HEAD.size + max(int.from_bytes(row[at : at + 4], "big", signed=True), 0) + _DUE_AT
    return row[start : start + _DUE_CHARS] == b"%d" % due


def first_key_of(row: bytes) -> bytes:
    """The first key of the message, from which its id was made."""
    return peek(id_of(row).decode()).key


def attempt_of(row: bytes) -> int:
    """The number of failed deliveries."""
    return int.from_bytes(row[:2], "big")


def name_of(row: bytes) -> bytes:
    """The name of a message, empty if it has none."""
    _, frame_at, _, _, _, name_bytes = ROW.unpack_from(row)
    return row[frame_at - name_bytes : frame_at]


def topic_of(row: bytes) -> bytes:
    """The topic of a message."""
    return row[ROW.size : ROW.size + row[TOPIC_BYTES_AT]]


def topics_of(due: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    """The topics of many messages, given as keys and rows."""
    start = ROW.size
    return {row[start : start + row[TOPIC_BYTES_AT]] for _, row in due}


def count_topics(rows: Iterable[bytes]) -> Counter[bytes]:
    """How many of these messages are for each topic."""
    start = ROW.size
    return Counter([row[start : start + row[TOPIC_BYTES_AT]] for row in rows])


def expires_of(row: bytes) -> int:
    """When a message expires, epoch ms; 0 = never."""
    return int.from_bytes(row[_EXPIRES], "big")


def any_expires(due: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether any of these messages, given as keys and rows, can expire."""
    return not {row[_EXPIRES] for _, row in due} <= {_NEVER}


def change_row(row: bytes, *, due: int | None = None, attempt: int | None = None, expires: int | None = None) -> bytes:
    """The row with another shown due time (ms), number of attempts, or expiry (ms)."""
    failures, frame_at, old_expires, *others = ROW.unpack_from(row)
    record = unpack_record(row[frame_at:])
    attempts = failures if attempt is None else attempt
    due_text = record.headers[1][1] if due is None else b"%d" % due
    system = (record.headers[0], ("duemq-due", due_text), ("duemq-attempt", b"%d" % (attempts + 1)))
    count, packed = pack_headers(system + record.headers[_SYSTEM_HEADERS:])
    head = ROW.pack(attempts, frame_at, old_expires if expires is None else expires, *others) + row[ROW.size : frame_at]
    return head + frame_of(record.key, count, packed, record.value)


def redriven_row(row: bytes, topic: bytes = b"", *, keeps_expiry: bool = False) -> bytes:
    """The row of a redriven dead letter, with another `topic` if one is given: no failed attempts, one more redrive,
    and no expiry unless `keeps_expiry`."""
    _, frame_at, expires, topic_bytes, label_bytes, name_bytes = ROW.unpack_from(row)
    topic = topic or topic_of(row)
    rest = row[ROW.size + topic_bytes : frame_at]
    record = unpack_record(row[frame_at:])
    redrives = _redrives_in(record.headers)
    system = (*record.headers[: _SYSTEM_HEADERS - 1], ("duemq-attempt", b"1"), (_REDRIVES, b"%d" % (redrives + 1)))
    count, packed = pack_headers(system + record.headers[_SYSTEM_HEADERS + bool(redrives) :])
    head = ROW.pack(
        0, ROW.size + len(topic) + len(rest), expires if keeps_expiry else 0, len(topic), label_bytes, name_bytes
    )
    return head + topic + rest + frame_of(record.key, count, packed, record.value)


def dead_frame(row: bytes, reason: str, attempts: int) -> bytes:
    """The frame of a dead letter: the delivered frame plus headers with its topic and the reason, both duemq's and
    those that Kafka's brokers write for share groups (KIP-1191). `attempts`: the number of failed attempts."""
    record = unpack_record(frame_in(row))
    topic, text = topic_of(row), reason.encode()
    more = (
        ("duemq-topic", topic), ("duemq-reason", text), ("__dlq.errors.topic", topic),
        ("__dlq.errors.delivery.count", b"%d" % attempts), ("__dlq.errors.message", text),
    )  # fmt: skip
    headers = record.headers[:_SYSTEM_HEADERS] + more + record.headers[_SYSTEM_HEADERS:]
    return frame_of(record.key, *pack_headers(headers), record.value)


def payload_at(row: bytes) -> int:
    """The position at which the payload, the last part of a row, begins."""
    at = int.from_bytes(row[2:6], "big")
    key_bytes, _, header_bytes = HEAD.unpack_from(row, at)
    end: int = at + HEAD.size + max(key_bytes, 0) + header_bytes
    return end


def without_payload(row: bytes) -> bytes:
    """The row without its payload, as it is kept for an ended message."""
    return row[: payload_at(row)]
