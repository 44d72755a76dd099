"""Celery: tasks with an eta in a broker that speaks as Redis does, in the form in which duemq holds tasks.

A worker that gets a task with an eta keeps it, unacknowledged: it stands in the hash `unacked`. Those that no worker
has got yet are in the lists of their queues. The payload is what `duemq.client.celery` would have given to duemq, so
that the relay (docs/celery.md) runs the tasks. Celery itself is not needed here.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from duemq.client.http.times import to_ms
from duemq.client.relay.deferred import DeferredQueue
from duemq.pipeline.migrate.rows import PendingRow, RejectedRow

ENVELOPE_VERSION: Final = 1
"""The version of `duemq.client.celery.envelope`; a test compares the two."""
_OF_THE_BROKER: Final = ("delivery_info", "delivery_tag", "body_encoding", "priority", "expiration")


@dataclass(frozen=True, slots=True)
class CeleryOptions:
    """`topic`: the one that the app's `install` names, and its relay reads."""

    topic: str = "celery"

    def read(self, document: Any) -> PendingRow:
        """`document`: a message of a queue, or what the hash has of one."""
        message, exchange, routing_key = _message(document)
        headers, properties = dict(message.get("headers") or {}), dict(message.get("properties") or {})
        body = _body(message, properties)
        about = headers
        if "id" not in headers:  # the first protocol, of Celery 3
            about = _first_protocol(body, message)
        eta = about.get("eta")
        if not eta:
            raise RejectedRow("it has no eta: it runs as soon as a worker takes it")
        about["eta"] = None
        if about is not headers:
            body = orjson.dumps(about)
        due, expires = _instant(eta, "eta"), about.get("expires")
        fields: dict[str, Any] = {"v": ENVELOPE_VERSION, **_body_field(body)}
        fields |= {
            "content_type": message.get("content-type"), "content_encoding": message.get("content-encoding"),
            "headers": headers,
            "properties": {name: value for name, value in properties.items() if name not in _OF_THE_BROKER},
            "priority": properties.get("priority") or 0, "exchange": exchange, "routing_key": routing_key,
            "declare": [],
        }  # fmt: skip
        if expires:
            fields["expires"] = _instant(expires, "expires").isoformat()
        id_, retries = str(about["id"]), int(about.get("retries") or 0)
        with_name = DeferredQueue("http://localhost", None, 1.0, self.topic).name(id_, retries)
        return PendingRow(to_ms(due), self.topic, orjson.dumps(fields), id_.encode(), name=with_name, twin=id_)


def _message(document: Any) -> tuple[dict[str, Any], str, str]:
    """The message, and the exchange and routing key it was sent with."""
    try:
        entry = document
        if isinstance(entry, list):  # of the hash: the message, exchange, routing key
            message, exchange, routing_key = entry
        else:
            about = entry["properties"]["delivery_info"]
            message, exchange, routing_key = entry, about["exchange"], about["routing_key"]
        if not isinstance(message["body"], str):
            raise TypeError("the body is no text")
    except (ValueError, KeyError, TypeError) as error:
        raise RejectedRow(f"not a message of Celery's: {type(error).__name__}: {error}") from error
    return message, exchange or "", routing_key


def _body(message: dict[str, Any], properties: dict[str, Any]) -> bytes:
    if properties.get("body_encoding") != "base64":
        return str(message["body"]).encode()
    try:
        return base64.b64decode(message["body"], validate=True)
    except ValueError as error:
        raise RejectedRow(f"body is not base64: {error}") from error


def _first_protocol(body: bytes, message: dict[str, Any]) -> dict[str, Any]:
    try:
        about = orjson.loads(body)
    except ValueError:
        about = None
    if not isinstance(about, dict) or "id" not in about:
        raise RejectedRow(f"a task of the first protocol in {message.get('content-type')}: only JSON can be read")
    return about


def _body_field(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def _instant(value: Any, what: str) -> datetime:
    """The time as a worker understands it: without a zone it is UTC."""
    try:
        when = datetime.fromisoformat(value)
    except (ValueError, TypeError) as error:
        raise RejectedRow(f"{what} is no time: {value!r}") from error
    return when if when.utcoffset() is not None else when.replace(tzinfo=UTC)
