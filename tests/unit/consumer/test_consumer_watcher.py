"""What a watcher is told: what comes, in its order and before its handler, and what has ended, once that is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from aiokafka.structs import TopicPartition

from duemq.client.consumer import Consumer, ConsumerOptions, Delays, Message, RetryLater
from duemq.client.consumer.message import KafkaRecord
from duemq.client.consumer.retry.policy import Reject
from tests.unit.consumer.test_consumer_whole import TOPIC, Log, until, working

pytestmark = pytest.mark.anyio


class NamedLog(Log):
    def log_id(self, topic: str) -> str:
        return f"log of {topic}"


class Watching:
    def __init__(self) -> None:
        self.told: list[object] = []

    def pulled(self, partition: TopicPartition, log_id: str, offsets: Sequence[int], start: int) -> None:
        self.told.append((partition, log_id, list(offsets), start))

    def ended(self, record: KafkaRecord) -> None:
        self.told.append(record.offset)


async def test_it_is_told_what_comes_and_what_is_done() -> None:
    watching, log = Watching(), NamedLog({TOPIC: 3})
    consumer = Consumer("g", options=ConsumerOptions(concurrency=1), watcher=watching)

    @consumer.on("orders")
    async def handle(message: Message) -> None:
        watching.told.append(f"handler of {message.record.offset}")

    async with working(consumer, log):
        await until(lambda: len(watching.told) == 7)
    assert watching.told[0] == (TOPIC, "log of orders", [0, 1, 2], 0)
    assert watching.told[1:] == ["handler of 0", 0, "handler of 1", 1, "handler of 2", 2]


async def test_what_goes_back_has_ended_once_that_is_durable() -> None:
    watching, log, durable = Watching(), NamedLog({TOPIC: 2}), asyncio.Event()
    consumer = Consumer("g", options=ConsumerOptions(retry=Delays(["1ms"])), watcher=watching)

    @consumer.on("orders")
    async def handle(message: Message) -> None:
        raise RetryLater("later") if message.record.offset else Reject("never")

    async with working(consumer, log) as back:
        at_once = back.send_back

        async def wait_and_send(*arguments: object) -> object:
            await durable.wait()
            return await at_once(*arguments)  # type: ignore[arg-type]

        back.send_back = wait_and_send  # type: ignore[assignment,method-assign]
        await until(lambda: watching.told)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(watching.told) == 1, "nothing has ended"
        durable.set()
        await until(lambda: len(watching.told) == 3)
    assert sorted(watching.told[1:]) == [0, 1]  # type: ignore[type-var]


async def test_what_is_tried_again_in_its_place_has_not_ended() -> None:
    watching, log, tries = Watching(), NamedLog({TOPIC: 1}), list[int]()
    consumer = Consumer("g", options=ConsumerOptions(ordered=True, retry=Delays(["1ms", "1ms"])), watcher=watching)

    @consumer.on("orders")
    async def handle(message: Message) -> None:
        tries.append(len(watching.told))
        if len(tries) < 3:
            raise RetryLater("later")

    async with working(consumer, log):
        await until(lambda: len(watching.told) == 2)
    assert tries == [1, 1, 1]
