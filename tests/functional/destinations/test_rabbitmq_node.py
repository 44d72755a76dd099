"""The RabbitMQ of the tests keeps what it confirmed, and shows what arrived."""

from __future__ import annotations

import aio_pika
import psutil
import pytest
from aio_pika.abc import AbstractQueue

from tests.support.destinations.rabbitmq_node import RabbitMQNode

pytestmark = [pytest.mark.anyio, pytest.mark.smoke]
BODY = bytes(range(256))


async def _declare(connection: aio_pika.abc.AbstractConnection, name: str) -> AbstractQueue:
    channel = await connection.channel()
    return await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})


async def _publish(url: str, queue: str, count: int) -> None:
    """Returns when all are confirmed."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await _declare(connection, queue)
        for number in range(count):
            message = aio_pika.Message(
                BODY, headers={"trace": "4711", "number": number}, message_id=f"m-{number}",
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )  # fmt: skip
            await channel.default_exchange.publish(message, queue, mandatory=True)


async def _consume(url: str, queue: str, count: int) -> list[str | None]:
    async with await aio_pika.connect(url) as connection:
        declared = await _declare(connection, queue)
        messages = [await declared.get(timeout=60) for _ in range(count)]
        for message in messages:
            assert message.body == BODY
            await message.ack()
        return [message.message_id for message in messages]


async def test_what_was_confirmed_survives_a_kill(own_rabbitmq: RabbitMQNode) -> None:
    node = own_rabbitmq
    await _publish(node.url, "orders", 20)
    node.until_on_disk("orders")
    family = psutil.Process(node.process.pid).children(recursive=True)
    node.kill()
    psutil.wait_procs(family, timeout=60)
    assert not [each for each in family if each.is_running()]
    node.start()
    assert await _consume(node.url, "orders", 5) == [f"m-{number}" for number in range(5)]
    arrived = node.dump("orders")
    assert [each.properties["message_id"] for each in arrived] == [f"m-{number}" for number in range(5, 20)]
    assert all(each.body == BODY for each in arrived)
    assert arrived[0].headers == {"trace": "4711", "number": 5}
    assert node.dump("orders") == []


async def test_tls(rabbitmq: RabbitMQNode) -> None:
    url = f"{rabbitmq.tls_url}?cafile={rabbitmq.ca}"
    await _publish(url, "by-tls", 1)
    assert await _consume(url, "by-tls", 1) == ["m-0"]
