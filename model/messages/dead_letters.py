"""Reads the headers of dead letters written by duemq, its consumers, Kafka's brokers for share groups (KIP-1191), Kafka
Streams (KIP-1034), Kafka Connect (KIP-298) or Spring for Apache Kafka.

All of them write text, except that Spring writes the partition as 32 bits and the offset as 64 bits, big endian. Any
client may have written a record, so a header that cannot be read is treated as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from duemq.model.topics.group_topics import DEAD, group_of_letters

Headers = Sequence[tuple[str, bytes | None]]

SHARE_GROUP: Final = "__dlq.errors."
_STREAMS: Final = "__streams.errors."
_CONNECT: Final = "__connect.errors."
_SPRING: Final = "kafka_dlt-"
_CONSUMER: Final = "x-duemq-"

REDRIVES: Final = "x-duemq-redrives"
"""How often the record was redriven from a topic of dead letters. The header stays when a consumer sends the record
back."""
REDRIVEN_FROM: Final = "x-duemq-redriven-from"
"""Topic, partition and offset of the dead letter from which a record was redriven, as `TOPIC/PARTITION/OFFSET`."""

DESTINATION: Final = "destination."
"""Prefix of the topics for a single destination; `dlq.destination.NAME` has the destination's dead letters."""

REDRIVEN_ORIGIN: Final = "x-duemq-redriven-origin"
"""Topic, partition and offset of the first record that became a dead letter, as `TOPIC/PARTITION/OFFSET`. It stays the
same however often the message died and was redriven since."""

REDRIVEN_ID: Final = "duemq-redriven-id"
"""The id that consumers see for a redriven record: the id of the message that died, so that a receiver that has already
processed this message recognizes it. No sender may use a header with this name."""


TOPICS: Final = (f"{DEAD}*",)
"""Patterns of the topics that hold only dead letters of duemq and its consumers."""


class LetterOrigin(NamedTuple):
    """Where a dead letter came from, according to its headers. `writer`: `duemq`, `consumer`, `share group`, `streams`,
    `connect` or `spring`. `topic`: empty if a malformed record has none. `partition`, `offset`: -1 if unknown.
    `attempts`: the number of failed deliveries."""

    writer: str
    topic: str
    partition: int = -1
    offset: int = -1
    reason: str = ""
    error: str = ""
    group: str = ""
    attempts: int = 0


class _Names(NamedTuple):
    """The names of one writer's headers. The header for `topic` is required."""

    writer: str
    topic: str
    partition: str = ""
    offset: str = ""
    reason: str = ""
    error: str = ""
    group: str = ""
    attempts: str = ""


_DUEMQ: Final = _Names(
    "duemq", "duemq-topic", reason="duemq-reason", error="duemq-error", attempts=SHARE_GROUP + "delivery.count"
)
MALFORMED: Final = "malformed"
"""duemq's reason for a record from a Kafka client that it cannot understand; the record may have no topic in it."""

_WRITERS: Final = (
    _Names(
        "consumer", "x-duemq-topic", "x-duemq-partition", "x-duemq-offset", "x-duemq-reason", "x-duemq-error",
        attempts="x-duemq-retried",
    ),
    _DUEMQ,
    _Names(
        "share group", SHARE_GROUP + "topic", SHARE_GROUP + "partition", SHARE_GROUP + "offset",
        error=SHARE_GROUP + "message", group=SHARE_GROUP + "group", attempts=SHARE_GROUP + "delivery.count",
    ),
    _Names(
        "streams", _STREAMS + "topic", _STREAMS + "partition", _STREAMS + "offset", _STREAMS + "exception",
        _STREAMS + "message",
    ),
    _Names(
        "connect", _CONNECT + "topic", _CONNECT + "partition", _CONNECT + "offset",
        _CONNECT + "exception.class.name", _CONNECT + "exception.message", _CONNECT + "connector.name",
    ),
    _Names(
        "spring", _SPRING + "original-topic", _SPRING + "original-partition", _SPRING + "original-offset",
        _SPRING + "exception-fqcn", _SPRING + "exception-message", _SPRING + "original-consumer-group",
    ),
)  # fmt: skip


def origin_of(headers: Headers) -> LetterOrigin | None:
    """Where a dead letter came from; None if its headers do not say. duemq's headers take precedence, because the
    sender may have written headers that look like another writer's. If there are headers from several other writers,
    the first writer in the list above takes precedence: it wrote last."""
    values = {name: value for name, value in headers if value is not None}
    writers: tuple[_Names, ...] = _WRITERS
    is_malformed = _text(values.get("duemq-reason")) == MALFORMED
    if is_malformed or ("duemq-topic" in values and "duemq-reason" in values):  # consumers keep neither header
        values = {name: value for name, value in reversed(headers) if value is not None}  # the sender's come last
        writers = (_DUEMQ,)
    for names in writers:
        if not (topic := _text(values.get(names.topic))) and not is_malformed:
            continue
        read = _binary if names.writer == "spring" else _number
        return LetterOrigin(
            names.writer, topic, read(values.get(names.partition), 4), read(values.get(names.offset), 8),
            _text(values.get(names.reason)), _text(values.get(names.error)), _text(values.get(names.group)),
            max(_number(values.get(names.attempts), 0), 0),
        )  # fmt: skip
    return None


def own_headers(headers: Headers) -> Iterable[tuple[str, bytes | None]]:
    """The headers that a record had before it died."""
    prefixes = (SHARE_GROUP, _STREAMS, _CONNECT, _SPRING, _CONSUMER, "duemq-")
    return (pair for pair in headers if not pair[0].startswith(prefixes))


def labels_in(headers: Headers) -> tuple[str, ...]:
    """The labels with which the message was scheduled."""
    values = dict(headers)
    text = _text(values.get("duemq-labels") or values.get("x-duemq-labels"))
    return tuple(text.split(",")) if text else ()


def id_of(headers: Headers) -> str:
    """The id of the message in a dead letter; empty if the headers do not say. duemq's consumers write it; other
    writers pass it on if they keep the headers of a record that duemq delivered."""
    values = dict(headers)
    return next((text for name in (_CONSUMER + "id", REDRIVEN_ID, "duemq-id") if (text := _text(values.get(name)))), "")


def home_of(topic: str) -> str:
    """The topic of the destination whose dead letters are in `topic`. The letters are redriven only to this topic,
    because other topics have other readers. Empty if `topic` belongs to no destination."""
    group = group_of_letters(topic)
    return group if group.startswith(DESTINATION) else ""


def first_place(headers: Headers) -> str:
    """The first place of a dead letter, as in `REDRIVEN_ORIGIN`; empty if its headers do not say."""
    if known := _text(dict(headers).get(REDRIVEN_ORIGIN)):
        return known
    origin = origin_of(headers)
    if origin is None or origin.partition < 0 or origin.offset < 0:
        return ""
    return f"{origin.topic}/{origin.partition}/{origin.offset}"


def redrives_in(headers: Headers) -> int:
    """How often the record was redriven from a topic of dead letters."""
    return max(_number(dict(headers).get(REDRIVES), 0), 0)


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")


def _number(value: bytes | None, size: int) -> int:
    text = _text(value)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1


def _binary(value: bytes | None, size: int) -> int:
    return int.from_bytes(value, "big", signed=True) if value is not None and len(value) == size else -1
