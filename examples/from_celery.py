"""Turns Celery's tasks with an eta, from its Redis or Valkey, into a table for `duemq spark schedule`.

    pip install 'duemq[celery,redis]'
    python from_celery.py redis://localhost:6379/0 --queue celery --queue mail
    python from_celery.py unacked.json celery.json

When a worker gets a task with an eta, it keeps the task in the hash `unacked`. Tasks that no worker has yet are in the
lists of their queues. The payloads are made as by `duemq.client.celery`, for its destination. Redis is only read.
docs/guides/pipeline/migrate.md describes the steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import redis
from pending_rows import Documents, NotPending, PendingRow, from_base64, options, read_documents, write_rows

from duemq.client.celery.envelope import Envelope
from duemq.client.deferred import DeferredQueue
from duemq.client.http.times import to_ms

PRIORITIES = (0, 3, 6, 9)  # for each queue, kombu has a list for each of these priority steps
SEPARATOR = "\x06\x16"
PAGE = 1_000
OF_THE_BROKER = ("delivery_info", "delivery_tag", "body_encoding", "priority", "expiration")


@dataclass
class Celery:
    """`topic`: the topic given to the app's `install`."""

    topic: str = "celery"

    def read(self, document: Any) -> PendingRow:
        """The row for a `document`: a message from a queue, or a value from the hash."""
        message, exchange, routing_key = _message(document)
        headers, properties = dict(message.get("headers") or {}), dict(message.get("properties") or {})
        body = message["body"].encode()
        if properties.get("body_encoding") == "base64":
            body = from_base64(body, "body")
        about = headers if "id" in headers else _first_protocol(body, message)
        if not (eta := about.get("eta")):
            raise NotPending("it has no eta: it runs as soon as a worker takes it")
        about["eta"] = None
        if about is not headers:
            body = json.dumps(about).encode()
        expires = about.get("expires")
        payload = Envelope(
            body, message.get("content-type"), message.get("content-encoding"), headers,
            {name: value for name, value in properties.items() if name not in OF_THE_BROKER},
            properties.get("priority") or 0, exchange, routing_key, [],
            _instant(expires, "expires") if expires else None,
        ).encode()  # fmt: skip
        id_ = str(about["id"])
        name = DeferredQueue("http://localhost", None, 1.0, self.topic).name(id_, int(about.get("retries") or 0))
        return PendingRow(to_ms(_instant(eta, "eta")), self.topic, payload, id_, name=name, twin=id_)


def _message(document: Any) -> tuple[dict[str, Any], str, str]:
    """The message, and the exchange and routing key with which it was sent."""
    try:
        if isinstance(document, list):  # from the hash
            message, exchange, routing_key = document
        else:
            message, about = document, document["properties"]["delivery_info"]
            exchange, routing_key = about["exchange"], about["routing_key"]
        if not isinstance(message["body"], str):
            raise TypeError("the body is no text")
    except (ValueError, KeyError, TypeError) as error:
        raise NotPending(f"not a message of Celery's: {type(error).__name__}: {error}") from error
    return message, exchange or "", routing_key


def _first_protocol(body: bytes, message: dict[str, Any]) -> dict[str, Any]:
    """The description of a task in the body of a message from Celery 3."""
    try:
        about = json.loads(body)
    except ValueError:
        about = None
    if not isinstance(about, dict) or "id" not in about:
        raise NotPending(f"a task of the first protocol in {message.get('content-type')}: only JSON can be read")
    return about


def _instant(value: Any, what: str) -> datetime:
    """The time as a worker understands it: a time without a zone is in UTC."""
    try:
        when = datetime.fromisoformat(value)
    except (ValueError, TypeError) as error:
        raise NotPending(f"{what} is no time: {value!r}") from error
    return when if when.utcoffset() is not None else when.replace(tzinfo=UTC)


def read_redis(url: str, queues: Sequence[str], prefix: str) -> Documents:
    """Messages that workers have not acknowledged, and the messages in the queues. `prefix`: the app's
    `global_keyprefix`."""

    def values(key: str) -> Iterator[tuple[str, bytes]]:
        if key == unacked:
            yield from ((tag.decode(), value) for tag, value in connection.hscan_iter(key, count=PAGE))
            return
        for start in range(0, connection.llen(key), PAGE):
            page = connection.lrange(key, start, start + PAGE - 1)
            yield from ((str(start + at), value) for at, value in enumerate(page))

    unacked = f"{prefix}unacked"
    steps = [f"{prefix}{queue}{f'{SEPARATOR}{step}' if step else ''}" for queue in queues for step in PRIORITIES]
    with redis.Redis.from_url(url) as connection:
        for key in (unacked, *steps):
            shown = key.replace(SEPARATOR, " priority ")
            yield from ((f"{shown}[{at}]", value.decode(errors="replace")) for at, value in values(key))


def main() -> None:
    parser = options(__doc__, "the URL of the Redis, or files as redis-cli --json writes them")
    parser.add_argument("--to", default="celery", help="the topic that the app's install names")
    parser.add_argument("--queue", action="append", help="a queue to look into, beside what workers hold")
    parser.add_argument("--prefix", default="", help="the transport's global_keyprefix")
    given = parser.parse_args()
    if "://" in given.paths[0]:
        documents = list(read_redis(given.paths[0], given.queue or ["celery"], given.prefix))
    else:
        documents = list(read_documents(given.paths))
    write_rows(lambda: iter(documents), Celery(given.to).read, given.out)


if __name__ == "__main__":
    main()
