"""The Dramatiq adapter with Dramatiq's own broker for tests, and a duemq in memory."""

from __future__ import annotations

import time
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.errors import BrokerConnectionError

from duemq.client.deferred import DeferredQueue
from duemq.client.dramatiq import DramatiqDeferral, NotHeld, hold_of, install
from duemq.client.http.errors import BadWhen, Unavailable
from tests.support.servers.fake_duemq import FakeDuemq


@pytest.fixture
def duemq(monkeypatch: pytest.MonkeyPatch) -> FakeDuemq:
    server = FakeDuemq()
    server.now = int(time.time() * 1000)
    monkeypatch.setattr(DeferredQueue, "client", property(lambda self: server))
    monkeypatch.setattr("duemq.client.dramatiq.PAUSES_S", (0.0,))
    return server


@pytest.fixture
def broker(duemq: FakeDuemq) -> Any:
    broker = StubBroker(middleware=[dramatiq.middleware.Retries(min_backoff=60_000, max_backoff=60_000, max_retries=2)])
    install(broker, "http://duemq.test")
    return broker


@pytest.fixture
def seen(broker: Any) -> list[tuple[Any, ...]]:
    return []


@pytest.fixture
def actor(broker: Any, seen: list[tuple[Any, ...]]) -> Any:
    @dramatiq.actor(broker=broker, queue_name="q")
    def work(*args: Any) -> None:
        seen.append(args)
        if args == ("fails",):
            raise RuntimeError("as it should")

    return work


def run(broker: Any) -> None:
    """All that is in the queues, and no more."""
    worker = dramatiq.Worker(broker, worker_timeout=10, worker_threads=1)
    worker.start()
    broker.join("q", fail_fast=False)
    worker.join()
    worker.stop()


def relayed(duemq: FakeDuemq, broker: Any, seconds: float) -> None:
    """What came due in so many seconds goes to the broker."""
    duemq.advance(seconds)
    for payload in duemq.take():
        broker.enqueue(dramatiq.Message.decode(payload))


def test_a_delay_is_held_and_comes_back(duemq: FakeDuemq, broker: Any, actor: Any, seen: list[Any]) -> None:
    actor.send_with_options(args=("later",), delay=3_600_000)
    assert broker.queues["q"].empty() and broker.queues["q.DQ"].empty()
    relayed(duemq, broker, 3599)
    assert broker.queues["q"].empty()
    relayed(duemq, broker, 2)
    run(broker)
    assert seen == [("later",)]


def test_a_delay_up_to_the_threshold_is_the_brokers(duemq: FakeDuemq, broker: Any, actor: Any) -> None:
    actor.send_with_options(args=("soon",), delay=1000)
    actor.send("now")
    assert duemq.messages == []
    assert broker.queues["q.DQ"].qsize() == broker.queues["q"].qsize() == 1


def test_retries_are_held(duemq: FakeDuemq, broker: Any, actor: Any, seen: list[Any]) -> None:
    actor.send("fails")
    for runs in (1, 2, 3):
        run(broker)
        assert len(seen) == runs
        relayed(duemq, broker, 130)
    run(broker)
    assert len(seen) == 3  # the retries are exhausted
    assert len({message.name for message in duemq.messages}) == 2


def test_a_cancelled_message_does_not_run(duemq: FakeDuemq, broker: Any, actor: Any) -> None:
    kept, dropped = (actor.send_with_options(args=(n,), delay=60_000) for n in "ab")
    assert hold_of(broker).cancel([dropped.message_id]) == {dropped.message_id}
    relayed(duemq, broker, 61)
    assert broker.queues["q"].qsize() == 1 and hold_of(broker).cancel([kept.message_id]) == set()


def test_without_duemq_a_delay_is_an_error(duemq: FakeDuemq, broker: Any, actor: Any) -> None:
    duemq.away = dict.fromkeys(("send", "cancel_many"), Unavailable("not now"))
    with pytest.raises(NotHeld, match="not now") as told:
        actor.send_with_options(args=("x",), delay=60_000)
    assert isinstance(told.value, BrokerConnectionError)
    assert broker.queues["q.DQ"].empty()
    with pytest.raises(NotHeld):
        hold_of(broker).cancel(["x"])


@pytest.mark.parametrize("error", [Unavailable("not now"), BadWhen("delay_too_long", "too far")])
def test_fallback_and_retries_go_to_the_broker_where_duemq_is_away(
    duemq: FakeDuemq, broker: Any, actor: Any, error: Exception
) -> None:
    duemq.away["send"] = error
    actor.send("fails")
    run_once = dramatiq.Worker(broker, worker_timeout=10, worker_threads=1)
    run_once.start()
    deadline = time.monotonic() + 300
    while not broker.queues["q.DQ"].unfinished_tasks:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    run_once.stop()
    hold_of(broker).fallback = True
    if isinstance(error, BadWhen):
        with pytest.raises(BadWhen):  # a message that is sent for the first time tells its sender
            actor.send_with_options(args=("x",), delay=60_000)
        return
    before = broker.queues["q.DQ"].unfinished_tasks
    actor.send_with_options(args=("x",), delay=60_000)
    assert broker.queues["q.DQ"].unfinished_tasks == before + 1


def test_installed_once(broker: Any) -> None:
    assert isinstance(hold_of(broker), DramatiqDeferral)
    with pytest.raises(ValueError, match="already"):
        install(broker)
    with pytest.raises(ValueError, match="install"):
        hold_of(StubBroker())
