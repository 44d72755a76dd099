"""RabbitMQ for the contract of outlets: a separate queue, read by aio-pika."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from typing import Any, Final
from urllib.parse import urlsplit

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from duemq.model.destinations.destination import read_credentials, read_destination
from duemq.relay.rabbitmq.outlet import RabbitMqOutlet
from tests.support.destinations.rabbitmq_node import RabbitMQNode
from tests.support.outlets.site import LOOPBACK, Received

_NUMBERS: Final = count()
_WITHIN_S: Final = 10.0
GUEST: Final = {"username": "guest", "password": "guest"}


def plain(url: str) -> str:
    """Without user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}:{parts.port}{parts.path}"


def rabbitmq_outlet(
    url: str, credentials: dict[str, str] | None = None, timeout: int = 10_000, **options: Any
) -> RabbitMqOutlet:
    destination = read_destination({"name": "rabbit", "url": plain(url), "timeout": timeout, "options": options})
    return RabbitMqOutlet(destination, read_credentials(GUEST | (credentials or {})), LOOPBACK)


class RabbitMQSite:
    name, keeps_headers, tells_repeats_apart = "rabbitmq", False, False

    def __init__(self, node: RabbitMQNode) -> None:
        self._node = node
        self._queue = f"contract-{next(_NUMBERS)}"
        self._arrived: list[Received] = []

    async def outlet(self) -> RabbitMqOutlet:
        async with await aio_pika.connect(self._node.url) as connection:
            channel = await connection.channel()
            await channel.declare_queue(self._queue, durable=True)
        return rabbitmq_outlet(self._node.url, routing_key=self._queue)

    async def received(self, count: int) -> list[Received]:
        with suppress(TimeoutError):
            async with asyncio.timeout(_WITHIN_S):
                await self._receive(count)
        return self._arrived

    async def _receive(self, count: int) -> None:
        async with await aio_pika.connect(self._node.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(self._queue, passive=True)
            while len(self._arrived) < count or queue.declaration_result.message_count:
                async for message in queue.iterator(no_ack=True):
                    self._arrived.append(received(message))
                    if len(self._arrived) >= count:
                        break
                await asyncio.sleep(0.2)  # for what should not be there
                queue = await channel.declare_queue(self._queue, passive=True)

    async def stop(self) -> None:
        await asyncio.to_thread(self._node.kill)

    async def start(self) -> None:
        await asyncio.to_thread(self._node.start)


def received(message: AbstractIncomingMessage) -> Received:
    headers: dict[str, Any] = dict(message.headers)
    id_, key = headers.pop("duemq-id"), headers.pop("duemq-key", None)
    del headers["duemq-due"]
    assert message.message_id is not None and message.message_id.startswith(f"{id_}:")
    payload = None if headers.pop("duemq-null", None) == "true" else message.body
    own = [(name, None if value is None else _bytes(value)) for name, value in headers.items()]
    return Received(id_, None if key is None else _bytes(key), own, payload)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
