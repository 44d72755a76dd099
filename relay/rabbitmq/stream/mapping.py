"""Maps a message to the sections of an AMQP 1.0 message for a stream; see `docs/guides/destinations/rabbitmq.md`."""

from __future__ import annotations

from typing import Final

from duemq.client.consumer.message import Message
from duemq.client.consumer.retry.headers import Headers
from duemq.relay.rabbitmq.stream.sections import Value, application_properties, data, properties

_PROPERTIES: Final = ("content-type", "content-encoding")
"""Headers that become AMQP properties, if their values are ASCII."""
_SYMBOL_BYTES: Final = 255


def encoded(message: Message) -> bytes:
    """The encoded properties, application properties and body of a message."""
    id_, due_ms, key = message.id, message.origin.due_ms, message.key
    pairs: list[tuple[str, Value]] = [("duemq-id", id_)]
    if due_ms is not None:
        pairs.append(("duemq-due", due_ms))
    if key is not None:
        pairs.append(("duemq-key", _text(key)))
    if message.value is None:
        pairs.append(("duemq-null", "true"))
    own: dict[str, str] = {}
    if headers := message.headers:
        own = _put(headers, pairs)
    head = properties(message.identity, message.topic, own.get("content-type"), own.get("content-encoding"), due_ms)
    return head + application_properties(pairs) + data(message.payload)


def _put(headers: Headers, pairs: list[tuple[str, Value]]) -> dict[str, str]:
    """Add the producer's headers to the application properties. Those that become AMQP properties are returned
    instead."""
    own: dict[str, str] = {}
    names = {name for name, _ in pairs}
    for name, raw in headers:
        lower = name.lower()
        if lower in _PROPERTIES and lower not in own and raw and len(raw) <= _SYMBOL_BYTES and raw.isascii():
            own[lower] = raw.decode()
            continue
        unique, count = name, 1
        while unique in names:  # a name may occur only once in a map
            count += 1
            unique = f"{name}#{count}"
        names.add(unique)
        pairs.append((unique, None if raw is None else _text(raw)))
    return own


def _text(raw: bytes) -> str | bytes:
    """Converts UTF-8 to text. Other bytes stay unchanged."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
