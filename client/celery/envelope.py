"""A kombu message as the payload of a duemq message, and back."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

from celery import Celery
from celery.utils.time import maybe_iso8601
from kombu import Exchange, Queue
from kombu.utils import json

from duemq.client.relay.relay import NotPublishable

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Envelope:
    """Everything a broker is given for a task; the body as its serializer and compression made it.

    `properties` has no time to live: the rest of it follows from `expires` when the message goes to the broker.
    `declare`: queues that must exist, by name if the app knows them.
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
        """The envelope as JSON, with a body that is not UTF-8 in base64. Raises `TypeError` for a header that JSON
        cannot represent."""
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

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """The envelope in a payload. Raises `NotPublishable`."""
        try:
            fields = json.loads(payload)
            if fields["v"] != VERSION:
                raise NotPublishable(f"a held task of version {fields['v']}: this relay knows {VERSION}")
            text = fields.get("body")
            body = base64.b64decode(fields["body_base64"]) if text is None else text.encode()
            members = {
                name: fields[name]
                for name in (
                    "content_type", "content_encoding", "headers", "properties", "priority", "exchange", "routing_key",
                    "declare",
                )
            }  # fmt: skip
            return cls(body=body, expires=maybe_iso8601(fields.get("expires")), **members)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NotPublishable(f"not a held task: {type(error).__name__}: {error}") from error


def named_queue(app: Celery, entity: Any) -> str | dict[str, Any] | None:
    """The part of a declaration that has to travel; None if it is not a queue."""
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


def queue_of(app: Celery, named: str | Mapping[str, Any]) -> Queue:
    """The reverse of `named_queue`. Raises `KeyError` for a name that the app must not create."""
    if isinstance(named, str):
        return app.amqp.queues[named]
    exchange = named["exchange"]
    return Queue(
        named["queue"],
        Exchange(**exchange) if exchange else None,
        named["routing_key"],
        durable=named["durable"],
        queue_arguments=named["arguments"],
    )
