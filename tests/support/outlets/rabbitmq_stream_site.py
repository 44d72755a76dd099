"""A RabbitMQ stream for the contract of outlets: read by rstream, which keeps the order of headers, or by pika."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from threading import Event, Thread
from typing import Any, Final

import pika
from aiokafka.structs import TopicPartition
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from rstream import AMQPMessage, Consumer, ConsumerOffsetSpecification, MessageContext, OffsetType, amqp_decoder

from duemq.client.consumer.message import Message
from duemq.model.destinations.destination import read_credentials, read_destination
from duemq.relay.base import Reply, Result
from duemq.relay.rabbitmq.stream.outlet import StreamOutlet
from tests.support.destinations.rabbitmq_node import RabbitMQNode
from tests.support.outlets.rabbitmq_site import GUEST, plain
from tests.support.outlets.site import LOOPBACK, Received

_NUMBERS: Final = count()
_QUIET_S: Final = 1.0
_WITHIN_S: Final = 10.0
LOG: Final = "a log"


def stream_outlet(
    node: RabbitMQNode, stream: str, credentials: dict[str, str] | None = None, secure: bool = False, **fields: Any
) -> StreamOutlet:
    port = node.stream_tls_port if secure else node.stream_port
    declared = {
        "name": "rabbit", "url": plain(node.tls_url if secure else node.url),
        "options": {"stream": stream, "stream_port": port}, **fields,
    }  # fmt: skip
    return StreamOutlet(read_destination(declared), read_credentials(GUEST | (credentials or {})), LOOPBACK)


def declare_stream(node: RabbitMQNode, stream: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        connection.channel().queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})


class StreamCounter:
    """Reads a stream from its first message on, in a thread, because the broker's figure for its length is seconds old.
    `count`: messages that have arrived; it restarts with the broker."""

    def __init__(self, node: RabbitMQNode, stream: str) -> None:
        self.count = 0
        self._node, self._stream = node, stream
        self._ending = Event()
        self._thread = Thread(target=self._run, name="count of a stream", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(0.1):
            with suppress(AMQPError, OSError):
                self._read(pika.BlockingConnection(pika.URLParameters(self._node.url)))

    def _read(self, connection: pika.BlockingConnection) -> None:
        self.count = 0
        try:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=1_000)
            channel.basic_consume(self._stream, self._take, arguments={"x-stream-offset": "first"})
            while not self._ending.is_set():
                connection.process_data_events(0.05)
        finally:
            if connection.is_open:
                connection.close()

    def _take(self, channel: BlockingChannel, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self.count += 1
        channel.basic_ack(method.delivery_tag)


def read_stream(node: RabbitMQNode, stream: str, at_least: int = 0) -> list[tuple[pika.BasicProperties, bytes]]:
    """All messages by AMQP 0-9-1, once nothing more comes for a second; fewer than `at_least` after some seconds."""
    messages: list[tuple[pika.BasicProperties, bytes]] = []

    def take(channel: BlockingChannel, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        messages.append((properties, body))
        channel.basic_ack(method.delivery_tag)

    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1_000)
        channel.basic_consume(stream, take, arguments={"x-stream-offset": "first"})
        seen = -1
        while len(messages) > seen:
            seen = len(messages)
            connection.process_data_events(_QUIET_S if seen >= at_least else _WITHIN_S)
    return messages


class WatchedOutlet:
    """Tells the outlet of each message what a consumer tells of it."""

    def __init__(self, outlet: StreamOutlet) -> None:
        self._outlet, self.concurrency = outlet, outlet.concurrency

    async def send(self, message: Message) -> Reply:
        record = message.record
        self._outlet.pulled(TopicPartition(record.topic, record.partition), LOG, [record.offset], 0)
        reply = await self._outlet.send(message)
        if reply.result is Result.ACCEPTED:
            self._outlet.ended(record)
        return reply

    async def close(self) -> None:
        await self._outlet.close()


class RabbitMQStreamSite:
    name, keeps_headers, tells_repeats_apart = "rabbitmq-stream", False, True

    def __init__(self, node: RabbitMQNode) -> None:
        self._node = node
        self._stream = f"contract-stream-{next(_NUMBERS)}"
        declare_stream(node, self._stream)

    async def outlet(self) -> WatchedOutlet:
        return WatchedOutlet(stream_outlet(self._node, self._stream))

    async def received(self, count: int) -> list[Received]:
        return [received(message) for message in await read_sections(self._node, self._stream, count)]

    async def stop(self) -> None:
        await asyncio.to_thread(self._node.until_streams_on_disk)
        await asyncio.to_thread(self._node.kill)

    async def start(self) -> None:
        await asyncio.to_thread(self._node.start)


async def read_sections(node: RabbitMQNode, stream: str, at_least: int = 0) -> list[AMQPMessage]:
    """As `read_stream`, by the stream protocol."""
    messages: list[AMQPMessage] = []
    came = asyncio.Event()

    async def take(message: AMQPMessage, _: MessageContext) -> None:
        messages.append(message)
        came.set()

    async with Consumer("127.0.0.1", node.stream_port, vhost="/", username="guest", password="guest") as consumer:
        first = ConsumerOffsetSpecification(OffsetType.FIRST)
        await consumer.subscribe(stream, take, decoder=amqp_decoder, offset_specification=first)
        with suppress(TimeoutError):
            while True:
                came.clear()
                async with asyncio.timeout(_QUIET_S if len(messages) >= at_least else _WITHIN_S):
                    await came.wait()
    return messages


def received(message: AMQPMessage) -> Received:
    headers: dict[str, Any] = {_text(name): value for name, value in message.application_properties.items()}
    id_, key = _text(headers.pop("duemq-id")), headers.pop("duemq-key", None)
    assert headers.pop("duemq-due")
    assert _text(message.properties.message_id).startswith(f"{id_}:")
    payload = None if headers.pop("duemq-null", None) is not None else bytes(message.body)
    own = [(name, None if value is None else bytes(value)) for name, value in headers.items()]
    return Received(id_, key, own, payload)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
