"""The HTTP API with the real server, in the loop of a test, and clients that write bytes.

With the fixture `way` a test runs twice, over plain TCP and over TLS.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import httpx
import pytest
from prometheus_client import CollectorRegistry

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.model.messages.record import pack_record
from duemq.proxy.app import Application, create_app
from duemq.proxy.gateway.base import Gateway
from duemq.proxy.request.ingress import Ingress, MessageLimits
from duemq.tls.contexts import ClientAuth, server_context
from duemq.tls.files import TlsFiles
from duemq.web.connection.connections import ConnectionLimits
from duemq.web.server import ServerStop, listen_on, serve_http, url_of
from duemq.web.settings import HttpSettings
from duemq.web.tls.server_tls import ServerTls
from tests.support.http.http_site import FakeGateway
from tests.support.patience import WITHIN_S
from tests.support.tls.certificates import Authority

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
    def __init__(
        self,
        url: str,
        bus: MemoryBus,
        app: Application,
        gateway: SlowGateway,
        stop: ServerStop,
        trusting: ssl.SSLContext | None,
        tls: ServerTls | None,
    ) -> None:
        self.url, self.bus, self.app, self.gateway, self.stop = url, bus, app, gateway, stop
        self.port = int(url.rpartition(":")[2])
        self.tls = tls
        self.trusting = trusting  # of the clients

    def http(self, **options: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(verify=self.trusting or False, **options)

    def slow_client(self, sends: bytes) -> socket.socket:
        """A client that sends this, and reads little or nothing."""
        client = socket.create_connection(("127.0.0.1", self.port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        if self.trusting is not None:
            client = self.trusting.wrap_socket(client, server_hostname="127.0.0.1")
        client.sendall(sends)
        return client

    async def fill(self, megabytes: int) -> None:
        await self.bus.create_topic("t", 1)
        for _ in range(megabytes):
            await self.bus.append({("t", 0): [pack_record(None, _SYSTEM, b"x" * (64 << 10))] * 16})

    async def connect(self, sends: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 12, ssl=self.trusting)
        writer.write(sends)
        return reader, writer

    async def rest_of(self, sends: bytes, *, half_closed: bool = False) -> bytes:
        """All data until the server closes the connection."""
        try:
            reader, writer = await self.connect(sends)
        except ConnectionError:  # before its handshake was over
            return b""
        try:
            if half_closed:
                half_close(writer)
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def is_well(self) -> None:
        for _ in range(20):  # on a busy machine this client may be slower than a test allows clients to be
            with suppress(httpx.TransportError):
                async with self.http() as http:
                    assert (await http.get(f"{self.url}/healthz")).status_code == 200
                return
        raise AssertionError("it does not answer")


def half_close(writer: asyncio.StreamWriter) -> None:
    """Stop sending, but keep reading. With TLS only TCP is half-closed: asyncio cannot half-close TLS."""
    if writer.can_write_eof():
        writer.write_eof()
        return
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as own:
        own.shutdown(socket.SHUT_WR)


_files: TlsFiles | None = None


@pytest.fixture(params=["plain", "tls"])
def way(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How the clients of a site reach it."""
    if request.param == "tls":
        files = Authority.make(tmp_path_factory.mktemp("tls")).issue("server")
        monkeypatch.setattr("tests.support.http.raw_site._files", files)


async def nothing_known(topic: str) -> None:
    """How many messages are pending."""


@asynccontextmanager
async def site(
    limits: ConnectionLimits = PATIENT,
    settings: HttpSettings | None = None,
    files: TlsFiles | None = None,
    client_auth: ClientAuth = "none",
) -> AsyncIterator[Site]:
    """`files`: of TLS; by default what the fixture `way` says. The clients of `Site` show `files` as well."""
    bus, stop, ready = MemoryBus(MemoryLog()), ServerStop(), asyncio.Event()
    gateway = SlowGateway()
    cast(Any, gateway).bus, cast(Any, gateway).topic_lateness = bus, lambda topic: {"count": 0}
    cast(Any, gateway).pending = nothing_known
    app = create_app(
        cast(Gateway, gateway),
        Ingress(MessageLimits()),
        settings or HttpSettings(),
        CollectorRegistry(),
        lambda: 0,
        stop,
    )
    listener = listen_on("127.0.0.1:0")
    files = files or _files
    url = url_of(listener, secure=files is not None)
    tls = None if files is None else ServerTls(server_context(files, client_auth), files.cert, "http.cert_file")
    trusting = None if files is None else ssl.create_default_context(cafile=files.ca)
    if files is not None and trusting is not None:
        trusting.load_cert_chain(files.cert, files.key)

    async def companion(url: str, stop: asyncio.Event) -> None:
        ready.set()

    async def told() -> None:
        transport = httpx.AsyncHTTPTransport(retries=50, verify=trusting or False)
        async with httpx.AsyncClient(transport=transport) as http:
            await http.get(f"{url}/healthz")

    async def work(shut: asyncio.Event) -> None:
        await shut.wait()

    serving = asyncio.create_task(serve_http(app, listener, url, 1, stop, told, work, companion, limits, tls))
    try:
        await ready.wait()
        yield Site(url, bus, app, gateway, stop, trusting, tls)
    finally:
        gateway.open.set()
        stop.set()
        await serving


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
