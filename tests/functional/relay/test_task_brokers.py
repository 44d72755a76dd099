"""Held tasks of Celery and Dramatiq through the outlet of their broker, a real one. duemq is in memory."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import dramatiq
import pytest
import redis
from celery import Celery
from dramatiq.brokers.redis import RedisBroker

from duemq.client import celery as duemq_celery
from duemq.client import dramatiq as duemq_dramatiq
from duemq.client.consumer.message import Message
from duemq.client.deferred import DeferredQueue
from duemq.relay.base import Result
from duemq.relay.redis.outlet import RedisOutlet
from tests.support.destinations.rabbitmq_node import RabbitMQNode
from tests.support.outlets.rabbitmq_site import rabbitmq_outlet
from tests.support.outlets.redis_site import redis_outlet
from tests.support.outlets.site import out_message
from tests.support.servers.fake_duemq import FakeDuemq
from tests.support.servers.valkey_node import ValkeyNode

pytestmark = [pytest.mark.anyio, pytest.mark.servers]

TASKS = 5


@pytest.fixture
def duemq(monkeypatch: pytest.MonkeyPatch) -> FakeDuemq:
    server = FakeDuemq()
    server.now = int(time.time() * 1000)
    monkeypatch.setattr(DeferredQueue, "client", property(lambda self: server))
    return server


def celery_project(url: str) -> tuple[Callable[[int], Any], Callable[[], list[Any]]]:
    app = Celery("tasks", broker=url, set_as_current=False)
    duemq_celery.install(app, "http://duemq.test")

    def waiting() -> list[Any]:
        with app.connection_for_read() as connection:
            queue = app.amqp.queues["celery"].bind(connection.default_channel)
            messages = list(iter(queue.get, None))
            for message in messages:
                message.ack()
            return [message.payload[0][0] for message in messages]

    return lambda n: app.send_task("work", (n,), countdown=60), waiting


def dramatiq_project(url: str) -> tuple[Callable[[int], Any], Callable[[], list[Any]]]:
    broker = RedisBroker(url=url)  # type: ignore[no-untyped-call]
    duemq_dramatiq.install(broker, "http://duemq.test")

    @dramatiq.actor(broker=broker, queue_name="work")
    def work(n: int) -> None: ...

    def waiting() -> list[Any]:
        consumer = broker.consume("work", prefetch=10, timeout=200)
        messages = list(iter(lambda: next(consumer), None))
        for message in messages:
            consumer.ack(message)
        return [message.args[0] for message in messages]

    return lambda n: work.send_with_options(args=(n,), delay=60_000), waiting


PROJECTS = {"celery": celery_project, "dramatiq": dramatiq_project}


def due_tasks(duemq: FakeDuemq, send: Callable[[int], Any]) -> list[Message]:
    for n in range(TASKS):
        send(n)
    duemq.advance(600)  # the real clock goes on, too
    return [out_message(n, payload=payload) for n, payload in enumerate(duemq.take())]


@asynccontextmanager
async def outlet_to(url: str, envelope: str) -> AsyncIterator[RedisOutlet]:
    outlet = redis_outlet(f"{url}/0", timeout=2_000, envelope=envelope)
    try:
        yield outlet
    finally:
        await outlet.close()


@pytest.mark.parametrize("envelope", PROJECTS)
async def test_workers_get_each_task_once_and_in_order(duemq: FakeDuemq, tmp_path: Path, envelope: str) -> None:
    with ValkeyNode(tmp_path) as valkey:
        send, waiting = PROJECTS[envelope](valkey.url)
        async with outlet_to(valkey.url, envelope) as outlet:
            messages = due_tasks(duemq, send)
            for message in (*messages, *messages):
                assert (await outlet.send(message)).result is Result.ACCEPTED
        assert waiting() == list(range(TASKS))
        with redis.Redis.from_url(valkey.url) as server:
            left = [key for key in server.scan_iter() if not key.startswith((b"duemq:", b"_kombu", b"dramatiq:__"))]
        assert left == []


REFUSALS = {
    "full": ("config set maxmemory 1", "config set maxmemory 0"),
    "read-only": ("replicaof 127.0.0.1 1", "replicaof no one"),
    "short of replicas": ("config set min-replicas-to-write 1", "config set min-replicas-to-write 0"),
}


@pytest.mark.parametrize("envelope", PROJECTS)
async def test_tasks_wait_for_a_broker_that_takes_no_writes(duemq: FakeDuemq, tmp_path: Path, envelope: str) -> None:
    with ValkeyNode(tmp_path) as valkey:
        send, waiting = PROJECTS[envelope](valkey.url)
        messages = due_tasks(duemq, send)
        async with outlet_to(valkey.url, envelope) as outlet:
            with redis.Redis.from_url(valkey.url) as server:
                for message, (refuse, accept) in zip(messages, REFUSALS.values(), strict=False):
                    server.execute_command(*refuse.split())
                    assert (await outlet.send(message)).result is Result.AWAY
                    server.execute_command(*accept.split())
            valkey.kill()
            assert (await outlet.send(messages[3])).result is Result.AWAY
            valkey.start()
            assert [(await outlet.send(message)).result for message in messages] == [Result.ACCEPTED] * TASKS
        assert waiting() == list(range(TASKS))


@pytest.mark.parametrize("envelope", PROJECTS)
async def test_a_queue_of_another_type_is_at_fault_alone(duemq: FakeDuemq, tmp_path: Path, envelope: str) -> None:
    with ValkeyNode(tmp_path) as valkey, redis.Redis.from_url(valkey.url) as server:
        send, _ = PROJECTS[envelope](valkey.url)
        server.set("celery" if envelope == "celery" else "dramatiq:work", "of another kind")
        async with outlet_to(valkey.url, envelope) as outlet:
            reply = await outlet.send(due_tasks(duemq, send)[0])
        assert (reply.result, reply.status) == (Result.FAILED, "WRONGTYPE")


@pytest.mark.xdist_group("destinations")
async def test_an_exchange_that_is_not_there_is_its_tasks_fault(rabbitmq: RabbitMQNode, duemq: FakeDuemq) -> None:
    url = rabbitmq.add_virtual_host("tasks")
    app = Celery("tasks", broker=url, set_as_current=False)
    duemq_celery.install(app, "http://duemq.test")
    with app.connection_for_read() as connection:
        app.amqp.queues["celery"].bind(connection.default_channel).declare()
    messages = due_tasks(duemq, lambda n: app.send_task("work", (n,), countdown=60, **_way(n)))
    outlet = rabbitmq_outlet(url, envelope="celery")
    try:
        replies = [await outlet.send(message) for message in messages]
    finally:
        await outlet.close()
    assert [reply.result for reply in replies] == [Result.ACCEPTED] * 2 + [Result.FAILED] + [Result.ACCEPTED] * 2


def _way(n: int) -> dict[str, str]:
    return {"exchange": "missing", "routing_key": "x", "exchange_type": "topic"} if n == 2 else {}
