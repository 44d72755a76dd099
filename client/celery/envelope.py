"""A kombu message as the payload of a duemq message. A relay reads it (`relay/held_task.py`)."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from celery import Celery
from kombu import Queue
from kombu.utils import json

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Envelope:
    """Everything that is sent to a broker for a task. `body`: the message body, serialized and compressed by kombu.

    `properties` contains no time to live: the remaining time is computed from `expires` when the message is sent to the
    broker. `declare`: the task's queues, for relays of version 0.2 and earlier.
    """

    body: bytes
    content_type: str
    content_encoding: str
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    priority: int
    exchange: str
    routing_key: str
    declare: Sequence[str | Mapping[str, Any]]
    expires: datetime | None

    def encode(self) -> bytes:
        """The envelope as JSON. A body that is not UTF-8 is encoded in base64. Raises `TypeError` for a header that
        JSON cannot represent."""
        fields: dict[str, Any] = {"v": VERSION}
        try:
            fields["body"] = self.body.decode()
        except UnicodeDecodeError:
            fields["body_base64"] = base64.b64encode(self.body).decode()
        fields |= {
            name: getattr(self, name)
            for name in ("content_type", "content_encoding", "headers", "properties", "priority")
        }
        fields |= {"exchange": self.exchange, "routing_key": self.routing_key, "declare": list(self.declare)}
        if self.expires is not None:
            fields["expires"] = self.expires.isoformat()
        encoded: bytes = json.dumps(fields).encode()
        return encoded


def named_queue(app: Celery, entity: Any) -> str | dict[str, Any] | None:
    """A declared queue as the envelope describes it: only its name if the app's configuration defines it. None if the
    entity is not a queue."""
    if not isinstance(entity, Queue):
        return None
    if app.amqp.queues.get(entity.name) == entity:
        name: str = entity.name
        return name
    exchange = entity.exchange
    return {
        "queue": entity.name,
        "routing_key": entity.routing_key,
        "durable": entity.durable,
        "arguments": entity.queue_arguments,
        "exchange": {"name": exchange.name, "type": exchange.type, "durable": exchange.durable} if exchange else None,
    }
