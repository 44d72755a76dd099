"""Handlers in threads: what waits for a thread has not begun."""

from __future__ import annotations

import asyncio
import threading

import pytest

from duemq.client.consumer import BlockingConsumer, ConsumerOptions, Message
from tests.unit.consumer.test_consumer_whole import TOPIC, Log, until, working

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("error", [StopIteration(), asyncio.CancelledError(), ValueError("boom")], ids=repr)
async def test_whatever_a_handler_in_a_thread_raises_is_a_failure(error: BaseException) -> None:
    blocking = BlockingConsumer("g", options=ConsumerOptions(concurrency=1))

    @blocking.on("orders")
    def fail(message: Message) -> None:
        raise error

    async with working(blocking.consumer, Log({TOPIC: 2})) as back:
        await until(lambda: len(back.sent) == 2)
    blocking.threads.shutdown()


async def test_a_message_that_waits_for_a_thread_uses_up_no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.client.consumer.work.worker_pool._WATCH_S", 0.001)
    blocking = BlockingConsumer("g", options=ConsumerOptions(concurrency=1, timeout_s=0.02))
    gate, looked, attempts = threading.Event(), list[int](), list[tuple[int, int]]()

    @blocking.on("orders")
    def handle(message: Message) -> None:
        attempts.append((message.record.offset, message.attempt))
        if message.record.offset == 0:
            gate.wait()  # a call without a time-out

    consumer, log = blocking.consumer, Log({TOPIC: 2})
    route = consumer.routes.only("orders")
    assert route is not None and route.queued is not None
    queued = route.queued

    def looks(message: Message) -> bool:
        if message.record.offset == 1:
            looked.append(1)
        return queued(message)

    route.queued = looks
    try:
        async with working(consumer, log) as back:
            await until(lambda: len(looked) >= 50)  # for longer than it may take
            assert [offset for offset, *_ in back.sent] == [0] and attempts == [(0, 1)]
            gate.set()
            await until(lambda: consumer.counts["orders", "done"] == 1)
        assert attempts == [(0, 1), (1, 1)] and len(back.sent) == 1
    finally:
        gate.set()
        blocking.threads.shutdown()
