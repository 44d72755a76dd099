"""The relays of Celery and Dramatiq while their broker, a real one, cannot take a task. duemq is in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dramatiq
import pytest
import redis
from celery import Celery
from dramatiq.brokers.redis import RedisBroker

from duemq.client import celery as duemq_celery
from duemq.client import dramatiq as duemq_dramatiq
from duemq.client.celery.envelope import Envelope
from duemq.client.celery.outlet import CeleryOutlet
from duemq.client.dramatiq import DramatiqOutlet
from duemq.client.http.values import Record
from duemq.client.relay.deferred import DeferredQueue
from duemq.client.relay.lease import Alone
from duemq.client.relay.relay import BrokerAway, Outlet, Relay
from tests.support.destinations.rabbitmq_node import RabbitMQNode
from tests.support.servers.fake_duemq import FakeDuemq
from tests.support.servers.valkey_node import ValkeyNode

pytestmark = pytest.mark.servers

TASKS = 5
AWAY_S = 2.0
"""Above the 1.5 s of five tries in a row."""


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[ValkeyNode]:
    with ValkeyNode(tmp_path) as node:
        yield node


@pytest.fixture
def duemq(monkeypatch: pytest.MonkeyPatch) -> FakeDuemq:
    server = FakeDuemq()
    server.now = int(time.time() * 1000)
    monkeypatch.setattr(DeferredQueue, "client", property(lambda self: server))
    return server


def celery_outlet(url: str) -> tuple[Outlet, Callable[[int], Any]]:
    app = Celery("tasks", broker=url, set_as_current=False)
    duemq_celery.install(app, "http://duemq.test")
    return CeleryOutlet(app, timeout_s=1.0), lambda n: app.send_task("work", (n,), countdown=60)


def dramatiq_outlet(url: str) -> tuple[Outlet, Callable[[int], Any]]:
    broker = RedisBroker(url=f"{url}?socket_timeout=1")  # type: ignore[no-untyped-call]
    duemq_dramatiq.install(broker, "http://duemq.test")

    @dramatiq.actor(broker=broker, queue_name="work")
    def work(n: int) -> None: ...

    return DramatiqOutlet(broker), lambda n: work.send_with_options(args=(n,), delay=60_000)


OUTLETS = {"celery": celery_outlet, "dramatiq": dramatiq_outlet}


class Site:
    """A relay in a thread, with tasks that are due."""

    def __init__(self, topic: str, duemq: FakeDuemq, url: str) -> None:
        self.duemq, self.url = duemq, url
        outlet, send = OUTLETS[topic](url)
        for n in range(TASKS):
            send(n)
        duemq.advance(61)
        client: Any = duemq
        self.relay = Relay(client, topic, "r", outlet, lease=Alone(), start="first")
        self._thread = threading.Thread(target=self.relay.run)

    def __enter__(self) -> Site:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> float:
        """Seconds that it took."""
        before = time.monotonic()
        self.relay.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return time.monotonic() - before

    def nothing_for(self, seconds: float) -> None:
        """Nothing is published, given up or sent back."""
        known = len(self.duemq.messages)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert (self.relay.published, self.relay.buried, len(self.duemq.messages)) == (0, 0, known)
            time.sleep(0.05)

    def wait_for_all(self) -> None:
        self.wait_until(lambda: self.relay.published == TASKS)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert self._thread.is_alive() and self.relay.buried == 0 and time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("topic", OUTLETS)
def test_tasks_wait_for_a_broker_that_is_killed(duemq: FakeDuemq, valkey: ValkeyNode, topic: str) -> None:
    site = Site(topic, duemq, valkey.url)
    valkey.kill()
    with site:
        site.nothing_for(AWAY_S)
        valkey.start()
        site.wait_for_all()


REFUSALS = {
    "full": ("config set maxmemory 1", "config set maxmemory 0"),
    "read-only": ("replicaof 127.0.0.1 1", "replicaof no one"),
    "short of replicas": ("config set min-replicas-to-write 1", "config set min-replicas-to-write 0"),
}


@pytest.mark.parametrize("topic", OUTLETS)
@pytest.mark.parametrize("how", REFUSALS)
def test_tasks_wait_for_a_broker_that_takes_no_writes(
    duemq: FakeDuemq, valkey: ValkeyNode, topic: str, how: str
) -> None:
    refuse, accept = REFUSALS[how]
    with redis.Redis.from_url(valkey.url) as server:
        site = Site(topic, duemq, valkey.url)
        server.execute_command(*refuse.split())
        with site:
            site.nothing_for(AWAY_S)
            server.execute_command(*accept.split())
            site.wait_for_all()


@pytest.mark.parametrize("topic", OUTLETS)
def test_a_queue_that_refuses_holds_up_no_other(duemq: FakeDuemq, valkey: ValkeyNode, topic: str) -> None:
    with redis.Redis.from_url(valkey.url) as server:
        server.set("celery" if topic == "celery" else "dramatiq:work", "of another kind")
        with Site(topic, duemq, valkey.url) as site:
            site.wait_until(lambda: len(duemq.messages) == 2 * TASKS)  # all have been tried, and come back later
            assert site.relay.published == 0
            server.flushall()
            duemq.advance(11)
            site.wait_for_all()


@pytest.mark.parametrize("topic", OUTLETS)
def test_a_relay_stops_while_its_broker_hangs(duemq: FakeDuemq, valkey: ValkeyNode, topic: str) -> None:
    site = Site(topic, duemq, valkey.url)
    valkey.fall_silent()
    try:
        with site:
            site.nothing_for(AWAY_S)
            assert site.stop() < 5.0
            assert duemq.places == {}
    finally:
        valkey.go_on()


def test_a_rabbitmq_that_is_silent_or_blocked_is_away(own_rabbitmq: RabbitMQNode) -> None:
    """With memory for nothing it takes a connection, reads no task, and confirms none."""
    app = Celery("tasks", broker=own_rabbitmq.url, set_as_current=False)
    outlet = CeleryOutlet(app, timeout_s=1.0)
    body = Envelope(
        body=b"[]", content_type="application/json", content_encoding="utf-8", headers={}, properties={}, priority=0,
        exchange="", routing_key="work", declare=[{"queue": "work", "routing_key": "work", "durable": True,
        "arguments": None, "exchange": None}], expires=None,
    ).encode()  # fmt: skip
    record = Record("celery", 0, 0, 0, None, body, {})
    outlet.publish(record)
    own_rabbitmq.control("set_vm_memory_high_watermark", "absolute", "1MB")
    before = time.monotonic()
    with pytest.raises(BrokerAway):
        outlet.publish(record)
    outlet.close()
    assert time.monotonic() - before < 10.0
    own_rabbitmq.control("set_vm_memory_high_watermark", "0.8")
    outlet.publish(record)
    outlet.close()
