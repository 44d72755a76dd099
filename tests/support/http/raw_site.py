"""The HTTP API behind the real server, in the loop of a test, and clients that write bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import httpx
from prometheus_client import CollectorRegistry

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.model.record import pack_record
from duemq.proxy.app import Application, create_app
from duemq.proxy.gateway.base import Gateway
from duemq.proxy.request.ingress import Ingress, MessageLimits
from duemq.web.connections import ConnectionLimits
from duemq.web.server import Stop, listen_on, serve_http, url_of
from duemq.web.settings import HttpSettings
from tests.support.http.http_site import FakeGateway

# No limit of time is met, whatever the machine is busy with.
PATIENT = ConnectionLimits(head_bytes=8 << 10, head_s=900, body_s=900, write_s=900, keep_alive_s=900)
_SYSTEM = (("duemq-id", b"i"), ("duemq-due", b"1"), ("duemq-attempt", b"1"))


class SlowGateway(FakeGateway):
    """Takes messages only while it is `open`."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()
        self.asked = asyncio.Event()

    async def send(self, drafts: Any) -> Any:
        self.asked.set()
        await self.open.wait()
        return await super().send(drafts)


class Site:
    def __init__(self, url: str, bus: MemoryBus, app: Application, gateway: SlowGateway, stop: Stop) -> None:
        self.url, self.bus, self.app, self.gateway, self.stop = url, bus, app, gateway, stop
        self.port = int(url.rpartition(":")[2])

    async def fill(self, megabytes: int) -> None:
        await self.bus.create_topic("t", 1)
        for _ in range(megabytes):
            await self.bus.append({("t", 0): [pack_record(None, _SYSTEM, b"x" * (64 << 10))] * 16})

    async def connect(self, sends: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 12)
        writer.write(sends)
        return reader, writer

    async def rest_of(self, sends: bytes, *, half_closed: bool = False) -> bytes:
        """What comes until the server closes the connection."""
        reader, writer = await self.connect(sends)
        try:
            if half_closed:
                writer.write_eof()
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def is_well(self) -> None:
        for _ in range(20):  # on a busy machine this client may be slower than a test allows clients to be
            with suppress(httpx.TransportError):
                async with httpx.AsyncClient() as http:
                    assert (await http.get(f"{self.url}/healthz")).status_code == 200
                return
        raise AssertionError("it does not answer")


@asynccontextmanager
async def site(limits: ConnectionLimits = PATIENT, settings: HttpSettings | None = None) -> AsyncIterator[Site]:
    bus, stop, ready = MemoryBus(MemoryLog()), Stop(), asyncio.Event()
    gateway = SlowGateway()
    cast(Any, gateway).bus, cast(Any, gateway).topic_lateness = bus, lambda topic: {"count": 0}
    app = create_app(
        cast(Gateway, gateway),
        Ingress(MessageLimits()),
        settings or HttpSettings(),
        CollectorRegistry(),
        lambda: 0,
        stop,
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

    serving = asyncio.create_task(serve_http(app, listener, url, 1, stop, told, work, companion, limits))
    try:
        await ready.wait()
        yield Site(url, bus, app, gateway, stop)
    finally:
        gateway.open.set()
        stop.set()
        await serving


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
