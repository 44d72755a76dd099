"""A stream of a real RabbitMQ, by the stream protocol: repeats, refusals, TLS, and what is in flight when a connection
ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from aiokafka.structs import TopicPartition

from duemq.client.consumer.message import Message
from duemq.relay.base import Reply, Result
from duemq.relay.rabbitmq.stream.outlet import StreamOutlet
from tests.support.destinations.rabbitmq_node import RabbitMQNode
from tests.support.outlets.rabbitmq_stream_site import (
    LOG,
    declare_stream,
    read_sections,
    read_stream,
    stream_outlet,
)
from tests.support.outlets.site import out_message

pytestmark = [pytest.mark.anyio, pytest.mark.smoke]
_NUMBERS = count()
_PARTITION = TopicPartition("orders", 0)


@pytest.fixture
def stream(rabbitmq: RabbitMQNode) -> str:
    name = f"stream-{next(_NUMBERS)}"
    declare_stream(rabbitmq, name)
    return name


@asynccontextmanager
async def opened(node: RabbitMQNode, stream: str, **fields: Any) -> AsyncIterator[StreamOutlet]:
    outlet = stream_outlet(node, stream, **fields)
    try:
        yield outlet
    finally:
        await outlet.close()


def messages(first: int, last: int) -> list[Message]:
    return [out_message(number, payload=b"%d" % number) for number in range(first, last)]


async def send_all(outlet: StreamOutlet, batch: list[Message], log: str = LOG) -> list[Reply]:
    outlet.pulled(_PARTITION, log, [message.record.offset for message in batch], batch[0].record.offset)
    return await asyncio.gather(*map(outlet.send, batch))


async def bodies(node: RabbitMQNode, stream: str, at_least: int) -> Counter[bytes]:
    return Counter(body for _, body in await asyncio.to_thread(read_stream, node, stream, at_least))


async def test_what_a_new_relay_sends_again_is_stored_once(rabbitmq: RabbitMQNode, stream: str) -> None:
    async with opened(rabbitmq, stream) as outlet:
        await send_all(outlet, messages(0, 300))
    async with opened(rabbitmq, stream) as outlet:
        replies = await send_all(outlet, messages(100, 400))
    assert {reply.result for reply in replies} == {Result.ACCEPTED}
    assert await bodies(rabbitmq, stream, 400) == Counter({b"%d" % number: 1 for number in range(400)})


async def test_the_same_offsets_of_another_log_are_no_repeats(rabbitmq: RabbitMQNode, stream: str) -> None:
    async with opened(rabbitmq, stream) as outlet:
        await send_all(outlet, messages(0, 10))
        await send_all(outlet, messages(0, 10), log="made anew")
    assert (await bodies(rabbitmq, stream, 20)).total() == 20


async def test_what_nobody_numbers_arrives_each_time(rabbitmq: RabbitMQNode, stream: str) -> None:
    async with opened(rabbitmq, stream) as outlet:
        for _ in range(2):
            assert (await outlet.send(out_message(1))).result is Result.ACCEPTED
    assert (await bodies(rabbitmq, stream, 2)).total() == 2


async def test_more_partitions_than_publishers(rabbitmq: RabbitMQNode, stream: str) -> None:
    async with opened(rabbitmq, stream) as outlet:
        batch = messages(0, 300)
        for number, message in enumerate(batch):
            message.record.partition = number
            outlet.pulled(TopicPartition("orders", number), LOG, [number], 0)
        replies = await asyncio.gather(*map(outlet.send, batch))
    assert {reply.result for reply in replies} == {Result.ACCEPTED}
    assert (await bodies(rabbitmq, stream, 300)).total() == 300


async def test_a_connection_that_is_lost_with_messages_in_flight(rabbitmq: RabbitMQNode, stream: str) -> None:
    """Before, between and after the broker stored them."""
    async with opened(rabbitmq, stream) as outlet:
        batch = messages(0, 3_000)
        outlet.pulled(_PARTITION, LOG, range(3_000), 0)
        replies: list[Reply] = []

        async def deliver(message: Message) -> None:
            while (reply := await outlet.send(message)).result is not Result.ACCEPTED:
                assert reply.result is Result.AWAY
                replies.append(reply)
                await asyncio.sleep(0.01)
            outlet.ended(message.record)

        async def cut() -> None:
            for _ in range(20):
                await asyncio.sleep(0.02)
                if outlet.connection is not None:
                    outlet.connection.abort(Reply(Result.AWAY, "cut"))

        cutting = asyncio.create_task(cut())
        for first in range(0, len(batch), 100):
            await asyncio.gather(*map(deliver, batch[first : first + 100]))
        await cutting
    assert replies, "some were in flight"
    assert await bodies(rabbitmq, stream, 3_000) == Counter({b"%d" % number: 1 for number in range(3_000)})


async def test_a_time_out_is_stored_once(rabbitmq: RabbitMQNode, stream: str) -> None:
    async with opened(rabbitmq, stream) as outlet:
        await send_all(outlet, messages(0, 1))
        first = messages(1, 2)[0]
        rabbitmq.process.pause()
        try:
            outlet.pulled(_PARTITION, LOG, [1], 1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await outlet.send(first)
        finally:
            rabbitmq.process.resume()
        record = out_message(1, payload=b"1").record
        record.topic, record.offset = "retries", 0
        assert (await outlet.send(Message(record, first.origin))).result is Result.ACCEPTED
    assert await bodies(rabbitmq, stream, 2) == Counter({b"0": 1, b"1": 1})


async def test_headers_body_and_key_as_sections_of_amqp_1(rabbitmq: RabbitMQNode, stream: str) -> None:
    headers = [
        ("zeta", b"1"), ("a", "ü".encode()), ("raw", b"\xff\x00"), ("a", b"2"), ("Content-Type", b"text/plain"),
        ("content-encoding", b"gzip"), ("content-type", b"second"), ("long", b"x" * 300),
    ]  # fmt: skip
    async with opened(rabbitmq, stream) as outlet:
        message = out_message(1, payload=bytes(range(256)) * 300, key=b"\xfe", headers=headers)
        assert (await outlet.send(message)).result is Result.ACCEPTED
        assert (await outlet.send(out_message(2, payload=b""))).result is Result.ACCEPTED
    first, second = await read_sections(rabbitmq, stream, 2)
    assert bytes(first.body) == message.payload
    assert bytes(second.body) == b""
    properties = first.properties
    assert (properties.message_id, properties.subject) == (message.identity.encode(), b"orders")
    assert (properties.content_type, properties.content_encoding) == (b"text/plain", b"gzip")
    assert properties.creation_time == message.due_ms
    assert list(first.application_properties.items()) == [
        (b"duemq-id", message.id.encode()), (b"duemq-due", message.due_ms), (b"duemq-key", b"\xfe"), (b"zeta", b"1"),
        (b"a", "ü".encode()), (b"raw", b"\xff\x00"), (b"a#2", b"2"), (b"content-type", b"second"),
        (b"long", b"x" * 300),
    ]  # fmt: skip
    by_amqp = {properties.message_id: (properties, body) for properties, body in read_stream(rabbitmq, stream, 2)}
    properties, body = by_amqp[message.identity]
    assert body == message.payload
    assert (properties.headers["a"], properties.headers["raw"], properties.content_type) == (
        "ü", b"\xff\x00", "text/plain",
    )  # fmt: skip


async def test_what_is_larger_than_a_frame_is_rejected(rabbitmq: RabbitMQNode, stream: str) -> None:
    async with opened(rabbitmq, stream) as outlet:
        reply = await outlet.send(out_message(1, payload=b"x" * (1 << 20)))
        assert (reply.result, reply.status) == (Result.REJECTED, "FRAME_TOO_LARGE")
        assert (await outlet.send(out_message(2, payload=b"x" * ((1 << 20) - 1_000)))).result is Result.ACCEPTED
    assert (await bodies(rabbitmq, stream, 1)).total() == 1


async def test_a_stream_that_is_not_there_may_come(rabbitmq: RabbitMQNode) -> None:
    name = f"stream-{next(_NUMBERS)}"
    async with opened(rabbitmq, name) as outlet:
        (reply,) = await send_all(outlet, messages(0, 1))
        assert (reply.result, reply.status) == (Result.AWAY, "STREAM_DOES_NOT_EXIST")
        declare_stream(rabbitmq, name)
        assert (await outlet.send(messages(0, 1)[0])).result is Result.ACCEPTED


async def test_a_stream_that_is_deleted_and_made_anew(rabbitmq: RabbitMQNode, stream: str) -> None:
    async with opened(rabbitmq, stream) as outlet:
        await send_all(outlet, messages(0, 5))
        rabbitmq.control("delete_queue", stream)
        declare_stream(rabbitmq, stream)
        outlet.pulled(_PARTITION, LOG, [5], 5)
        async with asyncio.timeout(30):
            while (await outlet.send(messages(5, 6)[0])).result is not Result.ACCEPTED:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    assert await bodies(rabbitmq, stream, 1) == Counter({b"5": 1})


async def test_who_has_no_right_waits_for_the_operator(rabbitmq: RabbitMQNode, stream: str) -> None:
    rabbitmq.control("add_user", stream, "secret")

    async def sent(**credentials: str) -> Reply:
        user = {"username": stream, "password": "secret"} | credentials
        async with opened(rabbitmq, stream, credentials=user) as outlet:
            return (await send_all(outlet, messages(0, 1)))[0]

    reply = await sent(password="wrong-one")
    assert (reply.result, reply.status) == (Result.AWAY, "AUTHENTICATION_FAILURE")
    assert "wrong-one" not in reply.detail
    reply = await sent()
    assert (reply.result, reply.status) == (Result.AWAY, "VIRTUAL_HOST_ACCESS_FAILURE")
    rabbitmq.control("set_permissions", stream, "", "", "")
    reply = await sent()
    assert (reply.result, reply.status) == (Result.AWAY, "ACCESS_REFUSED")
    rabbitmq.control("set_permissions", stream, "", stream, "")
    assert (await sent()).result is Result.ACCEPTED


async def test_tls(rabbitmq: RabbitMQNode, stream: str) -> None:
    async with opened(rabbitmq, stream, secure=True) as outlet:
        reply = await outlet.send(out_message(1))
        assert (reply.result, reply.status) == (Result.AWAY, "certificate")
    async with opened(rabbitmq, stream, secure=True, credentials={"ca": rabbitmq.ca.read_text()}) as outlet:
        assert (await outlet.send(out_message(1))).result is Result.ACCEPTED
