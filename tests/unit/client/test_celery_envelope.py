"""A task as the payload of a message, and back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue

from duemq.client.celery.envelope import Envelope, named_queue, queue_of
from duemq.client.relay.relay import NotPublishable

PLAIN: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "headers": {"id": "1", "at": datetime(2031, 1, 1, tzinfo=UTC), "raw": b"\xff"},
    "properties": {"delivery_mode": 2, "reply_to": "r"},
    "priority": 3,
    "exchange": "",
    "routing_key": "celery",
    "declare": ["celery"],
    "expires": None,
}


@pytest.mark.parametrize("body", [b"[]", "ä".encode(), b"\xff\x00", b""])
@pytest.mark.parametrize("expires", [None, datetime(2031, 1, 1, 8, tzinfo=UTC)])
def test_there_and_back(body: bytes, expires: datetime | None) -> None:
    envelope = Envelope(body=body, **PLAIN | {"expires": expires})
    assert Envelope.decode(envelope.encode()) == envelope


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"[]",
        b"1",
        b"{}",
        b'{"v": 1}',
        b'{"v": 2, "body": ""}',
        b'{"v": 1, "body": 3}',
        b'{"v":1,"body":""}',
    ],
)
def test_what_is_no_task_is_said_so(payload: bytes) -> None:
    with pytest.raises(NotPublishable):
        Envelope.decode(payload)


def test_a_queue_that_the_app_knows_travels_by_its_name() -> None:
    app = Celery("a", broker="memory://", set_as_current=False)
    assert named_queue(app, app.amqp.queues["celery"]) == "celery"
    assert queue_of(app, "celery") == app.amqp.queues["celery"]
    assert named_queue(app, Exchange("no-queue")) is None


def test_a_queue_of_a_caller_travels_whole() -> None:
    app = Celery("a", broker="memory://", set_as_current=False)
    own = Queue(
        "own", Exchange("e", "topic", durable=False), "k.#", durable=False, queue_arguments={"x-max-priority": 5}
    )
    back = queue_of(app, named_queue(app, own) or "")
    assert (back.name, back.routing_key, back.durable, back.queue_arguments) == (
        "own",
        "k.#",
        False,
        {"x-max-priority": 5},
    )
    assert (back.exchange.name, back.exchange.type, back.exchange.durable) == ("e", "topic", False)
