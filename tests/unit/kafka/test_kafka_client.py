"""A request that its broker does not answer times out, in every part of duemq that makes Kafka clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import KafkaConnectionError, RequestTimedOutError
from aiokafka.protocol.metadata import MetadataRequest

from duemq.bus.kafka.aiokafka_internals import client_of, mend_requests
from duemq.client.consumer.kafka.rebalance import Rebalance
from duemq.client.consumer.kafka.retry_publisher import RetryPublisher
from duemq.client.consumer.kafka.source import KafkaMessageSource
from duemq.client.consumer.options import ConsumerOptions
from duemq.client.lag.brokers import Brokers
from duemq.model.errors import Unavailable
from duemq.pipeline.logs.ranges import Logs
from tests.support.servers.aiokafka_parts import connected, connections_of

CONNECTION = (1, ConnectionGroup.DEFAULT)


class Silent:
    """A connection to a broker that is frozen."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[None]] = []
        self.closed = False

    def connected(self) -> bool:
        return not self.closed

    def send(self, request: Any, expect_response: bool) -> asyncio.Future[None]:
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    def close(self, reason: Any = None) -> None:
        self.closed = True


def test_each_request_of_a_connection_that_went_away_times_out() -> None:
    async def run() -> None:
        client: Any = AIOKafkaClient()
        mend_requests(client)
        silent = connections_of(client)[CONNECTION] = Silent()
        first, second = (asyncio.create_task(client.send(1, None)) for _ in range(2))
        while len(silent.answers) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        silent.answers[0].set_exception(TimeoutError())
        with pytest.raises(RequestTimedOutError):
            await first
        assert silent.closed
        del connections_of(client)[CONNECTION]  # a third request makes a new connection
        silent.answers[1].set_exception(TimeoutError())
        with pytest.raises(RequestTimedOutError):
            await second
        connections_of(client).clear()

    asyncio.run(run())


def test_a_request_on_a_connection_that_was_just_closed_is_a_kafka_error() -> None:
    """Not so without the mend: uvloop raises a RuntimeError, which ends whoever asked."""

    async def run() -> None:
        async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            client: Any = AIOKafkaClient()
            mend_requests(client)
            reader, writer = await asyncio.open_connection(host, port)
            connections_of(client)[CONNECTION] = connection = connected(reader, writer)
            writer.transport.abort()  # its reader is told a turn of the loop later
            with pytest.raises(KafkaConnectionError):
                await client.send(1, MetadataRequest([], allow_auto_topic_creation=False))
            assert not connection.connected()
            connections_of(client).clear()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def consume() -> None:
    async def nothing(_: Any) -> None: ...

    source = KafkaMessageSource("g", "127.0.0.1:1", ConsumerOptions(), ["t"], (), Rebalance(nothing, nothing))
    try:
        await client_of(source.kafka).send(1, None)
    finally:
        await source.stop()


async def send_back() -> None:
    publisher = RetryPublisher("g", "127.0.0.1:1", ConsumerOptions())
    producer = await publisher.open()
    try:
        await producer.client.send(1, None)
    finally:
        await publisher.stop()


async def measure_lag() -> None:
    await Brokers("127.0.0.1:1", {}).open()


async def look_up_offsets() -> None:
    await asyncio.to_thread(Logs("127.0.0.1:1").topics)


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (consume, RequestTimedOutError), (send_back, RequestTimedOutError), (measure_lag, Unavailable),
        (look_up_offsets, Unavailable),
    ],
)  # fmt: skip
def test_every_client_times_out(
    use: Callable[[], Awaitable[None]], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none raises the KeyError that aiokafka 0.14 gives."""

    async def send(*_: Any, **__: Any) -> None:
        raise KeyError(CONNECTION)

    async def bootstrap(client: Any) -> None:
        await client.send(1, None)

    async def started(_: Any) -> None: ...

    monkeypatch.setattr(AIOKafkaClient, "send", send)
    monkeypatch.setattr(AIOKafkaClient, "bootstrap", bootstrap)
    monkeypatch.setattr(AIOKafkaProducer, "start", started)

    async def run() -> None:
        with pytest.raises(error):
            await use()

    asyncio.run(run())
