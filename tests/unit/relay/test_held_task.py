"""A held task as its workers read it: an element of a list in Redis, a message of RabbitMQ."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from celery import Celery
from kombu import Exchange, Queue
from kombu.utils import json as kombu_json

from duemq.client.celery.envelope import Envelope, named_queue
from duemq.model.destinations.destination import read_destination
from duemq.model.destinations.rabbitmq import RabbitMqOptions
from duemq.model.destinations.redis import RedisOptions
from duemq.model.errors import Rejected
from duemq.relay.base import NotMapped, Result
from duemq.relay.held_task import CeleryTask, celery_task
from duemq.relay.rabbitmq.mapping import Mapping
from duemq.relay.redis.commands import Commands, Words
from tests.support.outlets.site import out_message

PLAIN: dict[str, Any] = {
    "body": b"[]",
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "headers": {"id": "1", "retries": 0, "at": datetime(2031, 1, 1, tzinfo=UTC), "raw": b"\xff", "stamps": {}},
    "properties": {"delivery_mode": 2, "reply_to": "r", "correlation_id": "c"},
    "priority": 0,
    "exchange": "",
    "routing_key": "mail",
    "declare": ["mail"],
    "expires": None,
}
DRAMATIQ = {
    "queue_name": "q", "actor_name": "work", "args": [2**70], "kwargs": {}, "options": {"broker_priority": 4},
    "message_id": "m", "message_timestamp": 1,
}  # fmt: skip


def task_payload(**fields: Any) -> bytes:
    return Envelope(**PLAIN | fields).encode()


def task(**fields: Any) -> CeleryTask:
    return celery_task(out_message(payload=task_payload(**fields)))


def redis_words(payload: bytes, envelope: str = "celery", **options: Any) -> Words:
    options = {"envelope": envelope, **options}
    return Commands(RedisOptions.model_validate(options)).words(out_message(payload=payload))


@pytest.mark.parametrize("body", [b"[]", "ä".encode(), b"\xff\x00", b""])
@pytest.mark.parametrize("expires", [None, datetime(2031, 1, 1, 8, tzinfo=UTC)])
def test_what_an_adapter_holds_is_read(body: bytes, expires: datetime | None) -> None:
    read = task(body=body, expires=expires)
    assert (read.body, read.expires, read.properties) == (body, expires, PLAIN["properties"])


@pytest.mark.parametrize(
    "payload", [b"", b"\xff", b"[]", b"1", b"{}", b'{"v":1}', b'{"v":2,"body":""}', b'{"v":1,"body":3}']
)
@pytest.mark.parametrize("envelope", ["celery", "dramatiq"])
def test_another_payload_is_rejected(payload: bytes, envelope: str) -> None:
    with pytest.raises(NotMapped) as in_redis:
        redis_words(payload, envelope)
    with pytest.raises(NotMapped):
        Mapping(RabbitMqOptions.model_validate({"envelope": envelope})).publication(out_message(payload=payload))
    assert in_redis.value.reply[:2] == (Result.REJECTED, "no_task")


@pytest.mark.parametrize(
    ("priority", "name"),
    [
        (0, b"mail"),
        (2, b"mail"),
        (3, b"mail\x06\x163"),
        (8, b"mail\x06\x166"),
        (9, b"mail\x06\x169"),
        (200, b"mail\x06\x169"),
    ],
)
def test_a_task_is_an_element_of_kombus_list(priority: int, name: bytes) -> None:
    words = redis_words(task_payload(priority=priority), dedup_window=0)
    assert words[:2] == ("LPUSH", name)
    message = kombu_json.loads(words[2])
    tag = message["properties"].pop("delivery_tag")
    assert UUID(tag) and message == {
        "body": "W10=", "content-type": "application/json", "content-encoding": "utf-8", "headers": PLAIN["headers"],
        "properties": PLAIN["properties"]
        | {"delivery_info": {"exchange": "", "routing_key": "mail"}, "priority": priority, "body_encoding": "base64"},
    }  # fmt: skip
    again = redis_words(task_payload(priority=priority), dedup_window=0)
    assert kombu_json.loads(again[2])["properties"]["delivery_tag"] != tag


@pytest.mark.parametrize(
    "change",
    [{"routing_key": 7}, {"headers": {"at": {"__type__": "datetime", "__value__": "soon"}}}, {"expires": "soon"}],
)
def test_a_task_with_a_part_that_cannot_be_read_is_rejected(change: dict[str, Any]) -> None:
    payload = json.dumps(json.loads(task_payload()) | change).encode()
    with pytest.raises(NotMapped) as refused:
        Mapping(RabbitMqOptions(envelope="celery")).publication(out_message(payload=payload))
    assert refused.value.reply[:2] == (Result.REJECTED, "no_task")


def test_the_name_may_have_a_prefix() -> None:
    assert redis_words(task_payload(), name="app:{{ queue }}", dedup_window=0)[1] == b"app:mail"


def test_redis_has_no_exchanges() -> None:
    with pytest.raises(NotMapped) as refused:
        redis_words(task_payload(exchange="e"))
    assert refused.value.reply.status == "exchange"


def test_a_message_of_dramatiq_is_in_a_hash_and_its_new_id_in_a_list() -> None:
    command, _, count, name, marker, messages, _, _, added, id_, message = redis_words(
        json.dumps(DRAMATIQ).encode(), "dramatiq"
    )
    assert (command, count, name, messages, added) == ("EVALSHA", 3, b"dramatiq:q", b"dramatiq:q.msgs", "RPUSH")
    assert isinstance(marker, bytes) and marker.startswith(b"duemq:{dramatiq:q}:")
    assert isinstance(message, bytes)
    assert json.loads(message) == DRAMATIQ | {"options": {"broker_priority": 4, "redis_message_id": id_}}


def test_a_task_is_a_message_of_rabbitmq_with_types() -> None:
    mapping = Mapping(RabbitMqOptions(envelope="celery"))
    message = out_message(payload=task_payload(exchange="e", priority=7, expires=datetime(2099, 1, 1, tzinfo=UTC)))
    made = mapping.publication(message)
    assert (made.exchange, made.routing_key, made.body) == ("e", "mail", b"[]")
    properties = made.properties
    assert properties.headers == PLAIN["headers"]
    assert (properties.content_type, properties.content_encoding) == ("application/json", "utf-8")
    assert (properties.correlation_id, properties.reply_to, properties.priority) == ("c", "r", 7)
    assert (properties.delivery_mode, properties.message_id) == (2, message.identity)
    assert int(properties.expiration) > 0


def test_an_expired_task_goes_to_a_worker_which_reports_it() -> None:
    assert task(expires=datetime(2020, 1, 1, tzinfo=UTC)).expiration_ms is None


def test_a_message_of_dramatiq_goes_to_its_queue_in_rabbitmq() -> None:
    made = Mapping(RabbitMqOptions(envelope="dramatiq")).publication(out_message(payload=json.dumps(DRAMATIQ).encode()))
    assert (made.exchange, made.routing_key, json.loads(made.body)) == ("", "q", DRAMATIQ)
    assert (made.properties.priority, made.properties.delivery_mode) == (4, 2)


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("redis://h", {"envelope": "celery", "kind": "stream"}, "is for lists"),
        ("redis://h", {"envelope": "celery", "cluster": True}, "without cluster"),
        ("redis://h", {"envelope": "celery", "name": "tasks"}, "these need it"),
        ("redis://h", {"kind": "list", "name": "{{ queue }}"}, "goes with envelope"),
        ("redis://h", {"envelope": "dramatiq", "dedup_window": 0}, "needs a dedup_window"),
        ("amqp://h", {"envelope": "celery", "exchange": "e"}, "no exchange"),
        ("amqp://h", {"envelope": "dramatiq", "routing_key": "k"}, "no routing_key"),
        ("amqp://h", {"envelope": "dramatiq", "stream": "s"}, "no envelope"),
        ("amqp://h", {"envelope": "json"}, "envelope"),
    ],
)
def test_what_cannot_be_is_refused(url: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(Rejected, match=says):
        read_destination({"name": "tasks", "url": url, "options": options})


def test_version_0_2_0_reads_the_declarations_that_need_no_newer_one() -> None:
    for url in ("amqp://h", "redis://h"):
        shown = read_destination({"name": "shop", "url": url}).value()["options"]
        assert shown.get("envelope", "json") == "json" and ("envelope" in shown) == url.startswith("redis")
    tasks = read_destination({"name": "tasks", "url": "amqp://h", "options": {"envelope": "celery"}})
    assert read_destination(tasks.value()) == tasks


def test_older_relays_are_told_the_queues() -> None:
    app = Celery("a", broker="memory://", set_as_current=False)
    assert named_queue(app, app.amqp.queues["celery"]) == "celery"
    assert named_queue(app, Exchange("no-queue")) is None
    own = Queue(
        "own", Exchange("e", "topic", durable=False), "k.#", durable=False, queue_arguments={"x-max-priority": 5}
    )
    assert named_queue(app, own) == {
        "queue": "own", "routing_key": "k.#", "durable": False, "arguments": {"x-max-priority": 5},
        "exchange": {"name": "e", "type": "topic", "durable": False},
    }  # fmt: skip
