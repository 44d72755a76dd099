"""Maps a message to AMQP 0-9-1: a routing key, properties and a table of headers; see `docs/guides/destinations.md`."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pika import BasicProperties

from duemq.client.consumer.message import Message
from duemq.client.consumer.retry.headers import Headers
from duemq.model.destinations.rabbitmq import NAMES, SHORT_BYTES, RabbitMqOptions
from duemq.model.destinations.template import KEY, TOPIC, fill, parse_name
from duemq.relay.base import NotMapped

Value = str | bytes | int | None | list[str | bytes | None]
"""Header value: a long string, a byte array, a 64-bit integer, void for null, or an array."""

_PROPERTIES: Final = {"content-type": "content_type", "content-encoding": "content_encoding"}
"""Headers that are properties in AMQP."""
_ROUTES: Final = ("CC", "BCC")
"""RabbitMQ would also send the message to these queues, which a producer may not decide. They get a prefix."""
_OWN: Final = "duemq-"
_PERSISTENT: Final = 2
_FIELD_BYTES: Final = 6  # overhead of a header, at most, without name and value
_PROPERTY_BYTES: Final = 1_200  # all properties and the frame, at most


class Publication(NamedTuple):
    """`header_bytes`: upper bound for the frame with the properties, which cannot be split."""

    routing_key: str
    properties: BasicProperties
    header_bytes: int


class Mapping:
    """Maps by the options of a destination. `by_key`: the routing key contains the message's key."""

    def __init__(self, options: RabbitMqOptions) -> None:
        self._parts = parse_name(options.routing_key, NAMES)
        self._by_topic = self._parts == (TOPIC,)
        self.by_key = KEY in self._parts
        self._mode = _PERSISTENT if options.persistent else 1

    def publication(self, message: Message) -> Publication:
        """Raises NotMapped."""
        id_, due_ms, key = message.id, message.origin.due_ms, message.key
        headers: dict[str, Value] = {"duemq-id": id_}
        if due_ms is not None:
            headers["duemq-due"] = due_ms
        if key is not None:
            headers["duemq-key"] = _text(key)
        if message.value is None:
            headers["duemq-null"] = "true"
        properties = BasicProperties(headers=headers, delivery_mode=self._mode)
        if len(identity := message.identity) <= SHORT_BYTES and identity.isascii():
            properties.message_id = identity
        if due_ms is not None:
            properties.timestamp = due_ms // 1000
        size = _PROPERTY_BYTES + len(id_) + len(key or b"")
        if own := message.headers:
            size += _put(own, headers, properties)
        return Publication(self._routing_key(message), properties, size)

    def _routing_key(self, message: Message) -> str:
        if self._by_topic:
            return message.topic
        key = ""
        if self.by_key:
            try:
                key = (message.key or b"").decode()
            except UnicodeDecodeError:
                raise NotMapped("routing_key", "the routing key is made of the key, which is not UTF-8") from None
        routing_key = fill(self._parts, {"topic": message.topic, "key": key})
        if len(routing_key.encode()) > SHORT_BYTES:
            raise NotMapped("routing_key", f"the routing key has more than {SHORT_BYTES} bytes")
        return routing_key


def _put(own: Headers, headers: dict[str, Value], properties: BasicProperties) -> int:
    """Put the producer's headers into `headers` and `properties`. Returns an upper bound for their bytes."""
    size = 0
    for name, value in own:
        text = None if value is None else _text(value)
        value = value or b""
        property_ = _PROPERTIES.get(name.lower())
        if (
            property_ is not None
            and isinstance(text, str)
            and len(value) <= SHORT_BYTES
            and getattr(properties, property_) is None
        ):
            setattr(properties, property_, text)
            continue
        if name in _ROUTES:
            name = _OWN + name
        name_bytes = len(name.encode(errors="replace"))
        if name_bytes > SHORT_BYTES:
            raise NotMapped("header_name", f"the name of a header has {name_bytes} bytes; AMQP holds {SHORT_BYTES}")
        size += name_bytes + len(value) + _FIELD_BYTES
        before: Any = headers.get(name)
        if name not in headers:
            headers[name] = text
        elif isinstance(before, list):
            before.append(text)
        else:
            headers[name] = [before, text]
            size += _FIELD_BYTES
    return size


def _text(value: bytes) -> str | bytes:
    """UTF-8 as text, because most clients read AMQP's long strings as text; other bytes unchanged."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
