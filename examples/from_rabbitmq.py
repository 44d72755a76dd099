"""Turns messages that wait in RabbitMQ into a table for `duemq spark schedule`.

    python from_rabbitmq.py rabbitmq_delayed.jsonl
    python from_rabbitmq.py get.json --taken-at 2026-11-22T05:18:00Z --ttl 600000 --to reminders

The files come from `rabbitmq_delayed.erl`, for the delayed-message exchange, or are answers of the management API to
`get`. docs/guides/pipeline/migrate.md describes the steps.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pending_rows import NotPending, PendingRow, delay, from_base64, instant, options, read_documents, whole, write_rows

PROPERTIES = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type", "app_id")
DELAY = "x-delay"


@dataclass
class RabbitMQ:
    """`topic`: the topic for all messages; None: their routing keys. `taken_at_ms`: when the dump was made; delays
    of messages without a timestamp begin at this time. `ttl_ms`: the `x-message-ttl` of a plain queue."""

    topic: str | None = None
    taken_at_ms: int | None = None
    ttl_ms: int | None = None

    def read(self, document: Any) -> PendingRow:
        if not isinstance(document, dict) or "payload" not in document:
            raise NotPending("not a message of RabbitMQ: it has no payload")
        properties = document.get("properties") or {}  # without properties, the API returns []
        headers = properties.get("headers") or {}
        expiration = properties.get("expiration")
        expires = None
        if "due_ms" in document:
            due = whole(document["due_ms"], "due_ms")
            if expiration is not None:  # it counts from the moment when the message enters its queue
                expires = due + delay(expiration, "expiration")
        else:
            wait = self._delay(headers, expiration)
            due = self._base(properties) + wait
        own = {name.replace("_", "-"): properties[name] for name in PROPERTIES if name in properties}
        own |= {name: value for name, value in headers.items() if name != DELAY}
        payload = document["payload"]
        if document.get("payload_encoding") == "base64":
            payload = from_base64(payload, "payload")
        return PendingRow(
            due, self.topic or str(document.get("routing_key", "")),
            payload if isinstance(payload, bytes) else str(payload).encode(),
            headers={name: value if isinstance(value, str) else json.dumps(value) for name, value in own.items()},
            expires_ms=expires, name=properties.get("message_id"),
        )  # fmt: skip

    def _delay(self, headers: dict[str, Any], expiration: Any) -> int:
        if DELAY in headers:
            return delay(headers[DELAY], DELAY)
        waits = [] if expiration is None else [delay(expiration, "expiration")]
        waits += [] if self.ttl_ms is None else [self.ttl_ms]
        if not waits:
            raise NotPending("it says no time: no x-delay, no expiration, and no --ttl of its queue was given")
        return min(waits)

    def _base(self, properties: dict[str, Any]) -> int:
        if (stamp := properties.get("timestamp")) is not None:
            return whole(stamp, "timestamp") * 1000
        if self.taken_at_ms is None:
            raise NotPending("it has no timestamp from which its delay counts: say --taken-at")
        return self.taken_at_ms


def main() -> None:
    parser = options(__doc__, "files of JSON: .jsonl by line, others as a document or a list")
    parser.add_argument("--to", help="the topic of all messages; by default the routing keys")
    parser.add_argument("--taken-at", type=instant, metavar="TIME", help="when the dump was made")
    parser.add_argument("--ttl", type=int, metavar="MS", help="the x-message-ttl of a plain queue")
    given = parser.parse_args()
    write_rows(lambda: read_documents(given.paths), RabbitMQ(given.to, given.taken_at, given.ttl).read, given.out)


if __name__ == "__main__":
    main()
