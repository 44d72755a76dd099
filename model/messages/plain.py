"""Turns records that plain Kafka clients write to the buffer topic into commands, by their headers.

    schedule   duemq-topic, one time, and optionally duemq-key, duemq-name, duemq-labels, and duemq-expires-at or
               duemq-expires-after; with x-duemq-return the name is that of a message that a consumer sends back
               (model/messages/names.py)
    move       duemq-move: an id or a name, and one time
    cancel, deliver now, redrive
               duemq-cancel, duemq-deliver-now or duemq-redrive: an id or a name
    import      duemq-import: a file of messages (model/messages/import_command.py)
    a time     duemq-deliver-at (a date-time with an offset, or epoch ms), duemq-delay (ms, or text such as 90s),
               x-delay (the same; a negative delay is 0, as in RabbitMQ's plug-in), or DELAY (a level in
               `CLASSIC_LEVELS`)

A proxy writes a change by name in this form, too (docs/adr/0088-one-form-of-changes-by-name.md). Its payload is the
caller (model/callers/caller.py).

A relative time is counted from the time at which the log appended the record. The meaning of a record depends only on
the record and its shard, not on settings, so all replicas agree about it. `docs/guides/kafka.md` explains the headers
to users.

Two rules depend on more than that: on the machine's time zones, and on how early a time may be, which older versions
did not check. The master decides by these rules; a reader with `judged` accepts its decision
(docs/adr/0060-times-that-are-meant.md).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from duemq.model.callers.caller import caller_bytes, read_caller
from duemq.model.errors import Rejected
from duemq.model.messages import import_command
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.import_command import ImportCommand, shard_of_content
from duemq.model.messages.message import (
    CANCEL,
    DELIVER_NOW,
    MAX_HEADERS,
    MOVE,
    NO_KEY,
    REDRIVE,
    Change,
    Draft,
    are_headers,
    is_topic,
    schedule_frame,
)
from duemq.model.messages.names import NO_NAME, RETURN_HEADER, Name, fingerprint, of_client, of_return, shard_of_name
from duemq.model.messages.record import (
    HEAD,
    HEADER,
    Headers,
    Record,
    are_nulls,
    headers_end,
    pack_headers,
    pack_record,
    unpack_record,
)
from duemq.model.timing import (
    CLASSIC_LEVELS,
    LAST_MS,
    instant_after,
    parse_duration,
    parse_instant,
    parse_levels,
    shown,
)
from duemq.model.topics.rules import LABEL, MAX_LABELS, NAME_RULE, TOPIC_BYTES, TOPIC_RULE, is_name

RESERVED = "duemq-"

_TOPIC, _KEY, _NAME, _LABELS, _EXPIRES, _EXPIRES_AFTER = (
    "duemq-topic", "duemq-key", "duemq-name", "duemq-labels", "duemq-expires-at", "duemq-expires-after",
)  # fmt: skip
_CHANGES = {"duemq-cancel": CANCEL, "duemq-move": MOVE, "duemq-deliver-now": DELIVER_NOW, "duemq-redrive": REDRIVE}
_HEADER_OF = {kind: header for header, kind in _CHANGES.items()}
_AT, _X_DELAY, _LEVEL = "duemq-deliver-at", "x-delay", "DELAY"
_TIMES = (_AT, "duemq-delay", _X_DELAY, _LEVEL)
# The header that makes a record a command of one kind, and the headers that are allowed with it. The first match is
# used.
_OF_KIND = {
    import_command.HEADER: frozenset((import_command.HEADER,)),
    **{header: frozenset((header, *_TIMES) if kind == MOVE else (header,)) for header, kind in _CHANGES.items()},
    _TOPIC: frozenset((_TOPIC, _KEY, _NAME, _LABELS, _EXPIRES, _EXPIRES_AFTER, *_TIMES)),
}
_OURS = frozenset[str]().union(*_OF_KIND.values())
_KINDS_BY_NAME = {header.encode(): kind for header, kind in _CHANGES.items()}
_NAME_AT = HEAD.size + HEADER.size  # position of the first header's name in a frame without a key
_MS_CHARS = 13  # in times from 2001 to 2286
_AT_START = HEADER.pack(len(_AT), _MS_CHARS) + _AT.encode()

_LEVELS = parse_levels(CLASSIC_LEVELS)
_LEVEL_TEXT = re.compile(r"[+-]?\d{1,18}", re.ASCII)


class ByName(NamedTuple):
    """A change of the message in this shard with this name (including the name's prefix). `due`: the new time (ms) for
    a move; `by`: see `Change`."""

    kind: int
    name: Name
    due: int
    by: str = ""


class MalformedRecord(NamedTuple):
    """A record that cannot be understood. `reason`: a code, the header at fault and the rule, as a sentence."""

    reason: str


class RecordPosition(NamedTuple):
    """Where a record is. `shards`: the number of shards in the cluster; None: do not check to which shard names
    belong."""

    shard: int
    shards: int | None
    ids: IdCodec

    def shard_of(self, name: Name) -> int:
        return self.shard if self.shards is None else shard_of_name(name, self.shards)


def command_of(
    frame: bytes, timestamp: int, place: RecordPosition, judged: bool = False
) -> bytes | Change | ByName | ImportCommand | MalformedRecord:
    """The meaning of a record without an envelope: the frame of a schedule, a change or a file to import. Never raises.

    `timestamp`: when the log appended the record, epoch ms. `judged`: whether a master has already accepted it.
    """
    if (change := _read_by_name(frame, timestamp, place)) is not None:
        return change
    record = read_record(frame)
    if record is None:
        return MalformedRecord("bad_record: the record is damaged")
    timestamp = max(timestamp, 0)
    try:
        ours = _our_headers(record.headers)
        kind = next((header for header in _OF_KIND if header in ours), None)
        if kind is None:
            raise Rejected("missing_topic", f"{_TOPIC} is required: the name of the topic to deliver to")
        if not ours.keys() <= _OF_KIND[kind]:
            stray = next(name for name in ours if name not in _OF_KIND[kind])
            raise Rejected("bad_header", f"{stray} does not go with {kind}")
        if kind == import_command.HEADER:
            return _import_file(ours[kind], place)
        texts = _texts(ours)
        if kind == _TOPIC:
            return _schedule(record, ours, texts, timestamp, place, judged)
        return _change(kind, texts, timestamp, place, read_caller(record.payload), judged)
    except Rejected as error:
        return MalformedRecord(f"{error.code}: {error.detail}")


def change_by_name(kind: int, name: str, due: int, by: str = "") -> bytes:
    """The frame of a change of the message with a client's name. `due`: the new time (ms) for a move. `by`: the
    caller."""
    headers = [(_HEADER_OF[kind], name.encode())]
    if kind == MOVE:
        headers.append((_AT, b"%d" % due))
    return pack_record(None, headers, caller_bytes(by))


def _read_by_name(frame: bytes, timestamp: int, place: RecordPosition) -> ByName | None:
    """A change as `change_by_name` writes it. It is read by position, at less than half the cost.

    None for any other record, even for a change by name in another form: `command_of` finds its meaning from its
    headers, or the reason to refuse it.
    """
    if len(frame) < _NAME_AT:
        return None
    key_bytes, count, header_bytes = HEAD.unpack_from(frame)
    name_bytes, value_bytes = HEADER.unpack_from(frame, HEAD.size)
    start = _NAME_AT + name_bytes
    kind = _KINDS_BY_NAME.get(frame[_NAME_AT:start])
    if kind is None or key_bytes != -1 or count != 1 + (kind == MOVE):
        return None
    value_at = end = start + value_bytes
    due = 0
    if kind == MOVE:
        value_at += len(_AT_START) + _MS_CHARS
        ms = frame[end + len(_AT_START) : value_at]
        if not frame.startswith(_AT_START, end) or not ms.isdigit() or ms.startswith(b"0"):
            return None
        due = max(int(ms), timestamp)
    if not HEAD.size + header_bytes == value_at <= len(frame):
        return None
    try:
        text = frame[start:end].decode()
    except UnicodeDecodeError:
        return None
    if not is_name(text) or place.ids.read(text) is not None or place.shard_of(name := of_client(text)) != place.shard:
        return None
    return ByName(kind, name, due, read_caller(frame[value_at:]))


def read_record(frame: bytes) -> Record | None:
    """The record in a frame, or None if the bytes are not a frame."""
    if len(frame) < HEAD.size:
        return None
    key_bytes, count, header_bytes = HEAD.unpack_from(frame)
    start = HEAD.size + max(key_bytes, 0)
    end = start + header_bytes
    if not are_headers(frame, start, end, count):
        marks = headers_end(frame, start, count)
        nulls = frame[marks:end] if 0 <= marks < end <= len(frame) else b""
        if not nulls or not are_nulls(nulls) or not are_headers(frame, start, marks, count):
            return None
    return unpack_record(frame)


def dead_letter(frame: bytes, shard: int, offset: int, reason: str) -> bytes:
    """The frame of the dead letter for a malformed record: the record as it came, with the reason and its position."""
    record = read_record(frame) or Record(None, (), frame)
    where = (
        ("duemq-reason", b"malformed"), ("duemq-error", reason.encode(errors="replace")),
        ("duemq-partition", b"%d" % shard), ("duemq-offset", b"%d" % offset),
    )  # fmt: skip
    return pack_record(record.key, where + record.headers[:MAX_HEADERS], record.value)


def _our_headers(headers: Headers) -> dict[str, bytes]:
    """The headers that are meant for duemq. Each may occur only once."""
    ours: dict[str, bytes] = {}
    for header, value in headers:
        name = import_command.HEADER if header == import_command.FORMER_HEADER else header
        if name in _OURS:
            if name in ours:
                raise Rejected("bad_header", f"{name} is given twice")
            # Null is read as empty here, as in older versions: all replicas must get the same result.
            ours[name] = value or b""
        elif name[: len(RESERVED)].lower() == RESERVED:
            raise Rejected("unknown_field", f"{shown(name)} is not a header here; known are {', '.join(sorted(_OURS))}")
    return ours


def _texts(ours: dict[str, bytes]) -> dict[str, str]:
    """The values of the headers as text, without the key (any bytes) and the topic (checked elsewhere)."""
    texts: dict[str, str] = {}
    for name, value in ours.items():
        try:
            texts[name] = value.decode()
        except UnicodeDecodeError:
            if name not in (_KEY, _TOPIC):
                raise Rejected("bad_header", f"the value of {name} is not text: {_quote(value)}") from None
    return texts


def _schedule(
    record: Record,
    ours: dict[str, bytes],
    texts: dict[str, str],
    timestamp: int,
    place: RecordPosition,
    judged: bool,
) -> bytes:
    topic = ours[_TOPIC]
    if len(topic) > TOPIC_BYTES or not is_topic(topic):
        raise Rejected("bad_topic", f"{_TOPIC} {TOPIC_RULE} and not begin with duemq. or __, not {_quote(topic)}")
    due = _due(texts, timestamp, judged)
    key = ours.get(_KEY, record.key)
    if key is not None and len(key) >= NO_KEY:
        raise Rejected("bad_field", f"the key has {len(key)} bytes, the limit is {NO_KEY - 1}")
    own = tuple((name, value) for name, value in record.headers if name not in _OURS)
    if len(own) > MAX_HEADERS:
        raise Rejected("bad_header", f"{len(own)} headers are given, the limit is {MAX_HEADERS}")
    count, packed = pack_headers(own)

    name, digest = NO_NAME, b""
    if _NAME in texts:
        name = _name(texts[_NAME], _NAME, place)
    if name and any(header == RETURN_HEADER for header, _ in own):
        name, digest = of_return(texts[_NAME], topic, key, record.value)
    elif name:
        # The fingerprint is of the record as sent, not of the resulting time: a repeat with a relative time is a
        # duplicate.
        parts = [part for header in sorted(ours.keys() - {_KEY}) for part in (header.encode(), ours[header])]
        value = () if record.value is None else (record.value,)
        digest = fingerprint(*parts, b"" if key is None else b"k" + key, packed, *value)

    labels = tuple(label.strip() for label in texts[_LABELS].split(",")) if texts.get(_LABELS) else ()
    if len(labels) > MAX_LABELS:
        raise Rejected("bad_field", f"{_LABELS} are at most {MAX_LABELS}, not {len(labels)}")
    for label in labels:
        if not LABEL.fullmatch(label):
            raise Rejected("bad_field", f"{_LABELS}: a label has 1 to 128 printable characters, not {shown(label)}")

    expires = 0
    given = [name for name in (_EXPIRES, _EXPIRES_AFTER) if name in texts]
    if given:
        expires = _expiry(given, texts, timestamp, judged)
        if expires < max(due, timestamp):
            raise Rejected("bad_time", f"{given[0]} is before the message is due")
    return schedule_frame(
        Draft(topic.decode(), record.value, due, key, count, packed, labels, expires, name, digest), due
    )


def _change(
    header: str, texts: dict[str, str], timestamp: int, place: RecordPosition, by: str, judged: bool
) -> Change | ByName:
    kind = _CHANGES[header]
    due = max(_due(texts, timestamp, judged), timestamp) if kind == MOVE else 0
    text = texts[header]
    message_id = place.ids.read(text)
    if message_id is None:
        return ByName(kind, _name(text, header, place), due, by)
    if message_id.direct:
        raise Rejected("already_delivered", f"{header}: message {text} had no delay, it was delivered when it came")
    if message_id.shard != place.shard:
        raise Rejected(
            "wrong_partition", f"{header}: {text} belongs to partition {message_id.shard}, not {place.shard}"
        )
    return Change(kind, message_id.key, due, None, by)


def _due(texts: dict[str, str], timestamp: int, judged: bool) -> int:
    """The due time (epoch ms), from the only header that may give it."""
    names = [name for name in _TIMES if name in texts]
    if len(names) != 1:
        code = "both_times" if names else "bad_time"
        raise Rejected(code, f"exactly one of {', '.join(_TIMES)} says when, not {' and '.join(names) or 'none'}")
    name, text = names[0], texts[names[0]]
    if name == _AT:
        return parse_instant(text, name, text=True, local=False, judged=judged)
    if name == _LEVEL:
        if not _LEVEL_TEXT.fullmatch(text):
            raise Rejected("bad_level", f"{_LEVEL} must be a whole number, not {shown(text)}")
        level = int(text)
        due = timestamp + (_LEVELS[min(level, len(_LEVELS)) - 1] if level > 0 else 0)
    else:
        due = timestamp + _delay(text, name)
    if due > LAST_MS:
        raise Rejected("delay_too_long", f"{name} is too far ahead: messages are due before the year 10000")
    return due


def _expiry(given: list[str], texts: dict[str, str], timestamp: int, judged: bool) -> int:
    if len(given) > 1:
        raise Rejected("both_times", f"{' and '.join(given)} are both given")
    name, text = given[0], texts[given[0]]
    if name == _EXPIRES:
        return parse_instant(text, name, text=True, local=False, judged=judged)
    return instant_after(timestamp, parse_duration(text, name, text=True), name)


def _delay(text: str, name: str) -> int:
    try:
        return parse_duration(text, name, text=True)
    except Rejected as error:
        if name == _X_DELAY and error.code == "negative_delay":
            return 0
        raise


def _name(text: str, header: str, place: RecordPosition) -> Name:
    """A client's name, which must belong to this shard."""
    if not is_name(text):
        what = "a name has" if header == _NAME else "no id of this cluster, and a name has"
        raise Rejected("bad_field", f"{header}: {what} {NAME_RULE}, not {shown(text)}")
    name = of_client(text)
    if (shard := place.shard_of(name)) != place.shard:
        what = "the name" if header == _NAME else "no id of this cluster; the name"
        raise Rejected("wrong_partition", f"{header}: {what} {text} belongs to partition {shard}, not {place.shard}")
    return name


def _import_file(raw: bytes, place: RecordPosition) -> ImportCommand:
    command = ImportCommand.decode(raw)
    if place.shards is not None and (shard := shard_of_content(command.sha256, place.shards)) != place.shard:
        raise Rejected("wrong_partition", f"a file of this sha256 belongs to partition {shard}, not {place.shard}")
    return command


def _quote(raw: bytes) -> str:
    return shown(raw.decode(errors="backslashreplace"))
