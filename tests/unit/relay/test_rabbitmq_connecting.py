"""Ports that are no broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from duemq.relay.base import Result
from tests.support.outlets.rabbitmq_site import rabbitmq_outlet
from tests.support.outlets.site import out_message

pytestmark = pytest.mark.anyio

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(talk: Talk) -> AsyncIterator[str]:
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"amqp://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def test_one_that_says_nothing() -> None:
    ended = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            pass
        writer.close()
        ended.set()

    async with listening(talk) as url:
        outlet = rabbitmq_outlet(url, timeout=600)
        async with asyncio.timeout(10):
            replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(3)))
        assert {(reply.result, reply.status) for reply in replies} == {(Result.AWAY, "timeout")}
        async with asyncio.timeout(10):
            await ended.wait()  # no connection is left behind
        await outlet.close()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"AMQP\x00\x01\x00\x00", b""])
async def test_one_that_speaks_something_else(answer: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with listening(talk) as url:
        outlet = rabbitmq_outlet(url, timeout=2_000)
        async with asyncio.timeout(20):
            reply = await outlet.send(out_message(1))
        assert reply.result is Result.AWAY and reply.detail
        await outlet.close()


async def test_closed_while_it_connects() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with listening(talk) as url:
        outlet = rabbitmq_outlet(url)
        sending = asyncio.create_task(outlet.send(out_message(1)))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(8):
            await outlet.close()
            await asyncio.wait([sending])
        assert sending.cancelled()
