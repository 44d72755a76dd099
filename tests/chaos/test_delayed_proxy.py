"""The proxy of late requests, in front of a broker that only records its input."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from struct import pack

import pytest

from duemq.dev.servers.ports import HOST
from tests.chaos.delayed.holds import Api, Hold
from tests.chaos.delayed.proxy import Proxy

pytestmark = pytest.mark.anyio

MARKER = b"duemq-x-shard-0"
_REFUSED = 47


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Broker:
    """Answers each request at once: EndTxn with an error, Metadata with its own address. `got`: correlation ids."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self.grown, self.ended = asyncio.Event(), asyncio.Event()
        self._open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                self.got.append(int.from_bytes(frame[4:8]))
                self.grown.set()
                port = writer.get_extra_info("sockname")[1]
                address = HOST.encode() + pack(">i", port) if frame[1] == Api.METADATA else b""
                answer = frame[4:8] + pack(">ih", 0, _REFUSED) + address
                writer.write(pack(">i", len(answer)) + answer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self._open -= 1
        if not self._open:
            self.ended.set()


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, api: Api, correlation: int) -> None:
        frame = pack(">hhih", api, 0, correlation, 3) + b"one" + pack(">h", len(MARKER)) + MARKER
        self.writer.write(pack(">i", len(frame)) + frame)

    async def answer(self) -> bytes:
        return await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(4)))


class Site:
    """A broker, a proxy in front of it, and the clients that came by its door."""

    def __init__(self, broker: Broker, proxy: Proxy, door: str) -> None:
        self.broker, self.proxy = broker, proxy
        self.port = int(door.partition(":")[2])
        self._clients: list[Client] = []

    async def connect(self) -> Client:
        self._clients.append(Client(*await asyncio.open_connection(HOST, self.port)))
        return self._clients[-1]

    async def close(self) -> None:
        for client in self._clients:
            client.writer.close()
            with suppress(ConnectionError):
                await client.writer.wait_closed()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    broker = Broker()
    server = await asyncio.start_server(broker.serve, HOST, 0)
    async with Proxy(server.sockets[0].getsockname()[1]) as proxy:
        site = Site(broker, proxy, await proxy.open_door())
        yield site
        await site.close()
    server.close()
    await broker.ended.wait()


async def test_a_request_lands_after_its_connection_is_closed(site: Site) -> None:
    hold = Hold(Api.END_TXN, MARKER, 0.2, skip=1, cut_s=0.0)
    site.proxy.hold([hold])
    first, second = await site.connect(), await site.connect()
    first.send(Api.END_TXN, 1)
    assert (await first.answer())[:4] == pack(">i", 1)
    first.send(Api.END_TXN, 2)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await first.answer()
    second.send(Api.END_TXN, 3)  # its retry is not held
    await second.answer()
    await hold.ended.wait()
    assert site.broker.got == [1, 3, 2] and hold.code == _REFUSED and hold.held_s >= 0.2


async def test_a_request_lands_before_the_client_sees_the_answer_it_waits_for(site: Site) -> None:
    hold = Hold(Api.END_TXN, MARKER, 0.0, after=Api.PRODUCE)
    site.proxy.hold([hold])
    first, second = await site.connect(), await site.connect()
    first.send(Api.END_TXN, 1)
    await hold.armed.wait()
    second.send(Api.ADD_PARTITIONS, 2)
    await second.answer()
    assert not hold.ended.is_set()
    second.send(Api.PRODUCE, 3)
    await second.answer()
    assert site.broker.got == [2, 3, 1] and hold.ended.is_set() and hold.met


async def test_an_answer_is_held(site: Site) -> None:
    hold = Hold(Api.END_TXN, MARKER, 0.2, cut_s=0.0, of_answer=True)
    site.proxy.hold([hold])
    client = await site.connect()
    client.send(Api.END_TXN, 1)
    await site.broker.grown.wait()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await client.answer()
    assert site.broker.got == [1] and not hold.ended.is_set()
    await hold.ended.wait()
    assert hold.held_s >= 0.2


async def test_a_client_is_led_back_to_its_door(site: Site) -> None:
    client = await site.connect()
    client.send(Api.METADATA, 1)
    assert (await client.answer()).endswith(HOST.encode() + pack(">i", site.port))
