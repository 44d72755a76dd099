"""A real HTTP server whose clients do not do their part: each is cut off, and holds up nobody else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import cast

import httpx
import pytest
from prometheus_client import CollectorRegistry

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.delay.gateway import Gateway
from duemq.model.record import pack_record
from duemq.proxy.app import FrontDoor, create_app
from duemq.proxy.connections import ConnectionLimits
from duemq.proxy.http_server import listen_on, serve_http, url_of
from duemq.proxy.ingress import Ingress, Limits
from duemq.proxy.sections import HttpSettings

pytestmark = pytest.mark.anyio

MIB = 1 << 20
QUICK = ConnectionLimits(head_bytes=8 << 10, head_s=0.4, body_s=0.4, write_s=0.4)
PATIENT = QUICK._replace(head_s=900, body_s=900, write_s=900)
HEAD = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nduemq-topic: t\r\ncontent-length: 1000\r\n\r\n"
SYSTEM = (("duemq-id", b"i"), ("duemq-due", b"1"), ("duemq-attempt", b"1"))


class Site:
    def __init__(self, url: str, bus: MemoryBus, door: FrontDoor) -> None:
        self.url, self.bus, self.door = url, bus, door
        self.port = int(url.rpartition(":")[2])

    async def fill(self, megabytes: int) -> None:
        await self.bus.create_topic("t", 1)
        for _ in range(megabytes):
            await self.bus.append({("t", 0): [pack_record(None, SYSTEM, b"x" * (64 << 10))] * 16})

    async def connect(self, sends: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 12)
        writer.write(sends)
        return reader, writer

    async def rest_of(self, sends: bytes) -> bytes:
        """What comes until the server closes the connection."""
        reader, writer = await self.connect(sends)
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def is_well(self) -> None:
        for _ in range(20):  # on a busy machine this client is slower than QUICK allows, too
            with suppress(httpx.TransportError):
                async with httpx.AsyncClient() as http:
                    assert (await http.get(f"{self.url}/healthz")).status_code == 200
                return
        raise AssertionError("it does not answer")


@asynccontextmanager
async def site(limits: ConnectionLimits = QUICK, settings: HttpSettings | None = None) -> AsyncIterator[Site]:
    bus, stop, ready = MemoryBus(MemoryLog()), asyncio.Event(), asyncio.Event()
    gateway = SimpleNamespace(bus=bus, topic_lateness=lambda topic: {"count": 0}, why_not_ready=lambda: None)
    door = create_app(
        cast(Gateway, gateway), Ingress(Limits()), settings or HttpSettings(), CollectorRegistry(), lambda: 0, stop
    )
    listener = listen_on("127.0.0.1:0")
    url = url_of(listener)

    async def companion(url: str, stop: asyncio.Event) -> None:
        ready.set()

    async def told() -> None:
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(retries=50)) as http:
            await http.get(f"{url}/healthz")

    async def work(shut: asyncio.Event) -> None:
        await shut.wait()

    serving = asyncio.create_task(serve_http(door, listener, url, 1, stop, told, work, companion, limits))
    try:
        await ready.wait()
        yield Site(url, bus, door)
    finally:
        stop.set()
        await serving


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "sends",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET / HTTP/1.1\r\nhost: x\r\nx-a", id="half a head"),
        pytest.param(HEAD + b"x" * 999, id="a body without its end"),
    ],
)
async def test_a_client_that_does_not_send_its_request_is_cut_off(sends: bytes) -> None:
    async with site() as at, asyncio.timeout(300):
        assert await at.rest_of(sends) == b""
        await at.is_well()
        await until(lambda: at.door.admission.bytes == at.door.admission.requests == 0)


async def test_a_head_without_end_is_refused() -> None:
    async with site(PATIENT) as at, asyncio.timeout(300):
        reader, writer = await at.connect(b"GET / HTTP/1.1\r\nhost: x\r\n")
        answer = asyncio.create_task(reader.readline())
        while not answer.done() and not writer.is_closing():
            writer.write(b"x-a: y\r\n")
            await asyncio.sleep(0)
        assert b"431" in await answer
        writer.close()
        await at.is_well()


async def test_a_stream_that_nobody_reads_holds_little_and_is_ended() -> None:
    async with site(QUICK._replace(write_s=2)) as at, asyncio.timeout(300):
        await at.fill(16)
        request = b"GET /v1/topics/t/records HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n\r\n"
        clients = [socket.create_connection(("127.0.0.1", at.port)) for _ in range(5)]
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(request)
        admission, most = at.door.admission, 0

        def ended() -> bool:
            nonlocal most
            most = max(most, admission.bytes)
            return bool(most) and admission.requests == 0

        await until(ended)
        assert 0 < most <= len(clients) * (512 << 10)
        assert admission.bytes == 0
        for client in clients:
            client.close()
        await at.is_well()


async def test_pages_share_the_memory_there_is_and_are_complete_in_the_end() -> None:
    async with site(PATIENT, HttpSettings(max_inflight_bytes=MIB)) as at, asyncio.timeout(300):
        await at.fill(4)

        async def read_all() -> int:
            count, cursor = 0, ""
            async with httpx.AsyncClient(timeout=300) as http:
                while count < 64:
                    after = {"after": cursor} if cursor else {}
                    answer = await http.get(f"{at.url}/v1/topics/t/records", params={"max": "10000"} | after)
                    if answer.status_code == 503:
                        await asyncio.sleep(0.05)
                        continue
                    page = answer.json()
                    assert sum(len(record["payload"]) for record in page["records"]) <= MIB // 2
                    count, cursor = count + len(page["records"]), page["cursor"]
            return count

        readers: list[Awaitable[int]] = [read_all() for _ in range(4)]
        assert await asyncio.gather(*readers) == [64] * 4


async def test_connections_beyond_the_bound_are_closed() -> None:
    async with site(PATIENT._replace(connections=2)) as at, asyncio.timeout(300):
        first, second = await at.connect(b"GET / HTTP"), await at.connect(b"GET / HTTP")
        assert await at.rest_of(b"GET / HTTP") == b""
        for _, writer in (first, second):
            writer.close()

        async def answered() -> bool:
            return (await at.rest_of(b"GET /healthz HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200")

        while not await answered():
            pass
