"""Reads the tasks in the payloads of messages that the adapters for Celery and Dramatiq sent."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from uuid import uuid4

from duemq.client.consumer.message import Message
from duemq.relay.base import NotMapped

_VERSION: Final = 1
_PRIORITIES: Final = (9, 6, 3)
"""kombu's priority steps in Redis, except 0. Each has a separate list."""
_DECODERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "datetime": datetime.fromisoformat,
    "bytes": str.encode,
    "base64": b64decode,
}


class CeleryTask(NamedTuple):
    """A kombu message. `headers` and `properties`: JSON, with kombu's own types as objects (see `typed`)."""

    body: bytes
    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    priority: int
    exchange: str
    routing_key: str
    expires: datetime | None

    @property
    def expiration_ms(self) -> int | None:
        """The remaining time until the task expires. None if it never expires, or if it has expired: then it is sent
        without an expiry, so that a worker gets it and reports that it has expired."""
        left = 0 if self.expires is None else int((self.expires - datetime.now(UTC)).total_seconds() * 1000)
        return left if left > 0 else None

    @property
    def list_suffix(self) -> str:
        """The suffix that kombu appends to a queue's name in Redis for this priority."""
        step = next((step for step in _PRIORITIES if self.priority >= step), 0)
        return f"\x06\x16{step}" if step else ""

    def kombu_json(self) -> bytes:
        """The task as an element of a list in Redis. Each call uses a new delivery tag, by which kombu acknowledges the
        task."""
        info = {"exchange": self.exchange, "routing_key": self.routing_key}
        own = {
            "delivery_info": info,
            "priority": self.priority,
            "body_encoding": "base64",
            "delivery_tag": str(uuid4()),
        }
        message = {
            "body": b64encode(self.body).decode(),
            "content-encoding": self.content_encoding,
            "content-type": self.content_type,
            "headers": self.headers,
            "properties": self.properties | own,
        }
        return json.dumps(message).encode()


class DramatiqTask(NamedTuple):
    """A Dramatiq message. `payload`: the message as JSON. `priority`: its priority in RabbitMQ."""

    queue: str
    priority: int | None
    payload: bytes

    def redis_message(self) -> tuple[str, bytes]:
        """A new id for the message in Redis, and the message as JSON with that id."""
        fields, id_ = json.loads(self.payload), str(uuid4())
        fields["options"] = fields["options"] | {"redis_message_id": id_}
        return id_, json.dumps(fields).encode()


def celery_task(message: Message) -> CeleryTask:
    """The Celery task in a message. Raises NotMapped."""
    try:
        fields = json.loads(message.payload)
        if fields["v"] != _VERSION:
            raise NotMapped("no_task", f"a task of version {fields['v']}: this relay knows {_VERSION}")
        text, expires = fields.get("body"), fields.get("expires")
        exchange, routing_key = fields["exchange"], fields["routing_key"]
        if not isinstance(exchange, str) or not isinstance(routing_key, str):
            raise TypeError("exchange and routing_key are text")
        return CeleryTask(
            b64decode(fields["body_base64"]) if text is None else text.encode(),
            fields["content_type"], fields["content_encoding"], dict(fields["headers"]), dict(fields["properties"]),
            int(fields["priority"] or 0), exchange, routing_key,
            None if expires is None else datetime.fromisoformat(expires).astimezone(UTC),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotMapped("no_task", f"not a task of Celery: {type(error).__name__}: {error}") from error


def dramatiq_task(message: Message) -> DramatiqTask:
    """The Dramatiq message in a message. Raises NotMapped."""
    try:
        fields = json.loads(message.payload)
        priority = dict(fields["options"]).get("broker_priority")
        return DramatiqTask(str(fields["queue_name"]), None if priority is None else int(priority), message.payload)
    except (ValueError, KeyError, TypeError) as error:
        raise NotMapped("no_task", f"not a message of Dramatiq: {type(error).__name__}: {error}") from error


def typed(value: Mapping[str, Any]) -> Any:
    """kombu's JSON with objects that encode kombu's own types replaced by Python values. Raises NotMapped."""

    def decoded(fields: dict[str, Any]) -> Any:
        decode = _DECODERS.get(str(fields.get("__type__"))) if len(fields) == 2 else None
        return fields if decode is None else decode(fields["__value__"])

    try:
        return json.loads(json.dumps(value), object_hook=decoded)
    except (ValueError, TypeError, AttributeError) as error:
        raise NotMapped("no_task", f"not a task of Celery: {error}") from error
