"""Maps a message to AMQP 0-9-1: a routing key, properties and a table of headers; see `docs/guides/destinations.md`."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Final, NamedTuple

from pika import BasicProperties

from duemq.client.consumer.message import Message
from duemq.client.consumer.retry.headers import Headers
from duemq.model.destinations.rabbitmq import NAMES, SHORT_BYTES, RabbitMqOptions
from duemq.model.destinations.template import KEY, TOPIC, fill, parse_name
from duemq.relay.base import NotMapped
from duemq.relay.held_task import celery_task, dramatiq_task, typed

Value = str | bytes | int | None | list[str | bytes | None]
"""A header value: a long string, a byte array, a 64-bit integer, void for null, or an array."""

_PROPERTIES: Final = {"content-type": "content_type", "content-encoding": "content_encoding"}
"""Headers that become AMQP properties."""
_TASK_PROPERTIES: Final = ("correlation_id", "reply_to", "timestamp", "type", "user_id", "app_id")
_ROUTES: Final = ("CC", "BCC")
"""RabbitMQ would also route the message by the values of these headers, and a producer must not decide that. So their
names get a prefix."""
_OWN: Final = "duemq-"
_PERSISTENT: Final = 2
_FIELD_BYTES: Final = 6  # maximum overhead of a header, without its name and value
_PROPERTY_BYTES: Final = 1_200  # maximum size of all properties and the frame's overhead


class Publication(NamedTuple):
    """A message to publish. `header_bytes`: an upper bound for the size of the frame with the properties, which cannot
    be split."""

    exchange: str
    routing_key: str
    properties: BasicProperties
    header_bytes: int
    body: bytes


class Mapping:
    """Maps messages according to a destination's options. `by_message`: whether each message may have a different
    routing key, because it contains the message's key or a task's queue."""

    def __init__(self, options: RabbitMqOptions) -> None:
        self._parts = parse_name(options.routing_key, NAMES)
        self._by_topic = self._parts == (TOPIC,)
        self._exchange, self._envelope = options.exchange, options.envelope
        self.by_message = KEY in self._parts or options.envelope != "none"
        self._mode = _PERSISTENT if options.persistent else 1

    def publication(self, message: Message) -> Publication:
        """The publication for a message. Raises NotMapped."""
        if self._envelope == "celery":
            return self._celery(message)
        if self._envelope == "dramatiq":
            task = dramatiq_task(message)
            properties = BasicProperties(delivery_mode=self._mode, priority=task.priority)
            return _task(message, "", task.queue, properties, 0, task.payload)
        id_, due_ms, key = message.id, message.origin.due_ms, message.key
        headers: dict[str, Value] = {"duemq-id": id_}
        if due_ms is not None:
            headers["duemq-due"] = due_ms
        if key is not None:
            headers["duemq-key"] = _text(key)
        if message.value is None:
            headers["duemq-null"] = "true"
        properties = BasicProperties(headers=headers, delivery_mode=self._mode)
        properties.message_id = message_id(message)
        if due_ms is not None:
            properties.timestamp = due_ms // 1000
        size = _PROPERTY_BYTES + len(id_) + len(key or b"")
        if own := message.headers:
            size += _put(own, headers, properties)
        return Publication(self._exchange, self._routing_key(message), properties, size, message.payload)

    def _celery(self, message: Message) -> Publication:
        task = celery_task(message)
        own, expiration_ms = typed(task.properties), task.expiration_ms
        properties = BasicProperties(
            content_type=task.content_type, content_encoding=task.content_encoding, headers=typed(task.headers),
            delivery_mode=own.get("delivery_mode", self._mode), priority=task.priority,
            expiration=None if expiration_ms is None else str(expiration_ms),
            **{name: own[name] for name in _TASK_PROPERTIES if name in own},
        )  # fmt: skip
        size = 2 * len(json.dumps(task.headers)) + len(json.dumps(task.properties))
        return _task(message, task.exchange, task.routing_key, properties, size, task.body)

    def _routing_key(self, message: Message) -> str:
        if self._by_topic:
            return message.topic
        key = ""
        if KEY in self._parts:
            try:
                key = (message.key or b"").decode()
            except UnicodeDecodeError:
                raise NotMapped("routing_key", "the routing key is made of the key, which is not UTF-8") from None
        routing_key = fill(self._parts, {"topic": message.topic, "key": key})
        if len(routing_key.encode()) > SHORT_BYTES:
            raise NotMapped("routing_key", f"the routing key has more than {SHORT_BYTES} bytes")
        return routing_key


def message_id(message: Message) -> str:
    """A message's identity, or a digest of it if it does not fit. If the broker returns a message, it includes this
    id."""
    identity = message.identity
    if len(identity) <= SHORT_BYTES and identity.isascii():
        return identity
    return sha256(identity.encode(errors="surrogatepass")).hexdigest()


def _task(
    message: Message, exchange: str, routing_key: str, properties: BasicProperties, header_bytes: int, body: bytes
) -> Publication:
    if max(len(exchange.encode()), len(routing_key.encode())) > SHORT_BYTES:
        raise NotMapped("routing_key", f"the task's exchange or routing key has more than {SHORT_BYTES} bytes")
    properties.message_id = message_id(message)
    return Publication(exchange, routing_key, properties, _PROPERTY_BYTES + header_bytes, body)


def _put(own: Headers, headers: dict[str, Value], properties: BasicProperties) -> int:
    """Put the producer's headers into `headers` and `properties`. Returns an upper bound for their size in bytes."""
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
    """Converts UTF-8 to text, because most clients read AMQP's long strings as text. Other bytes stay unchanged."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
