"""RabbitMQ: messages of the delayed-message exchange, and messages that wait in a queue for their time to live.

Read are the answers of the management API's `get`, and what `examples/rabbitmq_delayed.erl` writes, which has the same
form and says when a message is due (`due_ms`).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Final

from duemq.pipeline.migrate.rows import PendingRow, RejectedRow, delay_ms, header_bytes, whole_ms

_PROPERTIES: Final = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type", "app_id")
_DELAY: Final = "x-delay"


@dataclass(frozen=True, slots=True)
class RabbitOptions:
    """`topic`: for all; else the routing key is the topic. `taken_at_ms`: when the dump was made, from which a delay
    counts where the message has no timestamp. `ttl_ms`: the queue's `x-message-ttl`, for plain queues."""

    topic: str | None = None
    taken_at_ms: int | None = None
    ttl_ms: int | None = None

    def read(self, document: Any) -> PendingRow:
        if not isinstance(document, dict) or "payload" not in document:
            raise RejectedRow("not a message of RabbitMQ: it has no payload")
        properties = document.get("properties") or {}  # the API says [] for none
        headers = properties.get("headers") or {}
        expiration = properties.get("expiration")
        expires = None
        if "due_ms" in document:
            due = whole_ms(document["due_ms"], "due_ms")
            if expiration is not None:  # it counts from when the message comes into its queue
                expires = due + delay_ms(expiration, "expiration")
        else:
            delay = self._delay(headers, expiration)
            due = self._base(properties) + delay
        own = {name.replace("_", "-"): properties[name] for name in _PROPERTIES if name in properties}
        own |= {name: value for name, value in headers.items() if name != _DELAY}
        return PendingRow(
            due, self.topic or str(document.get("routing_key", "")), _payload(document), expires_ms=expires,
            headers=tuple((name, header_bytes(value)) for name, value in own.items()),
            name=properties.get("message_id"),
        )  # fmt: skip

    def _delay(self, headers: dict[str, Any], expiration: Any) -> int:
        if _DELAY in headers:
            if str(headers[_DELAY]).startswith("-"):
                raise RejectedRow("x-delay is negative: the plug-in has delivered it, and it waits for a consumer")
            return delay_ms(headers[_DELAY], _DELAY)
        waits = [] if expiration is None else [delay_ms(expiration, "expiration")]
        waits += [] if self.ttl_ms is None else [self.ttl_ms]
        if not waits:
            raise RejectedRow("it says no time: no x-delay, no expiration, and no --ttl of its queue was given")
        return min(waits)

    def _base(self, properties: dict[str, Any]) -> int:
        if (stamp := properties.get("timestamp")) is not None:
            return whole_ms(stamp, "timestamp") * 1000
        if self.taken_at_ms is None:
            raise RejectedRow("it has no timestamp from which its delay counts: say --taken-at")
        return self.taken_at_ms


def _payload(document: dict[str, Any]) -> bytes:
    payload = document["payload"]
    if document.get("payload_encoding", "string") != "base64":
        return str(payload).encode()
    try:
        return base64.b64decode(payload, validate=True)
    except (ValueError, TypeError) as error:
        raise RejectedRow(f"payload is not base64: {error}") from error
