"""An HTTP endpoint of the tests' own, which answers well or badly, and what of a message arrived there."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from duemq.model.destinations.destination import Credentials, Destination, read_destination
from duemq.relay.http.outlet import HttpOutlet
from tests.support.outlets.site import LOOPBACK, Received

_NOT_OF_THE_MESSAGE = ("host", "content-length", "content-type", "accept", "user-agent", "idempotency-key")


class HttpRequest(NamedTuple):
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for each, value in self.headers if each == name]

    def one(self, name: str) -> str:
        (value,) = self.all(name)
        return value


Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def status(code: int, body: bytes = b"", *headers: str) -> Answer:
    """A plain answer; the connection stays."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {code} Status", f"Content-Length: {len(body)}", *headers]
        writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)

    return answer


def raw(data: bytes, *, close: bool = True) -> Answer:
    """These bytes, which may be no HTTP."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if close:
            writer.close()

    return answer


def repeated(head: bytes, piece: bytes, pause_s: float = 0.0) -> Answer:
    """The head, and the piece again and again, while the client reads."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return answer


async def silent(writer: asyncio.StreamWriter) -> None:
    """No answer at all."""
    await asyncio.sleep(3_600)


async def reset(writer: asyncio.StreamWriter) -> None:
    """The connection ends with RST."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


class Endpoint:
    """`answer` may be changed at any time. `connections`: how many there ever were; `open`: how many are."""

    def __init__(self, answer: Answer | None = None, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None):
        self.answer = answer or status(200, b"ok")
        self.requests: list[HttpRequest] = []
        self.connections = self.open = 0
        self.port = 0
        self._host, self._tls = host, tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._host, self.port, ssl=self._tls, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """At once: no connection is ended in order."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http{'s' * (self._tls is not None)}://{host}:{self.port}/hook"

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connection(reader, writer), name="connection of the endpoint")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                while not writer.is_closing():
                    self.requests.append(await _request(reader))
                    await self._answered(reader, writer)
        finally:
            self.open -= 1
            writer.transport.abort()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The answer, unless the client goes away before it is done."""
        answering = asyncio.ensure_future(self.answer(writer))
        gone = asyncio.create_task(_wait_for_end(reader), name="end of the connection")
        try:
            await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answering, gone):
                task.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)


async def _wait_for_end(reader: asyncio.StreamReader) -> None:
    # A client sends no second request before the first is answered: the end is all that may come.
    while not reader.at_eof() and reader.exception() is None:  # noqa: ASYNC110  # streams have no other way
        await asyncio.sleep(0.01)


async def _request(reader: asyncio.StreamReader) -> HttpRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    length = next((int(value) for name, value in headers if name == "content-length"), 0)
    return HttpRequest(method, target, headers, await reader.readexactly(length))


@contextmanager
def full_host(host: str, port: int = 0) -> Iterator[int]:
    """A port that never answers a connection: the kernel's queue is full, and it drops later ones."""
    with socket.create_server((host, port), backlog=0) as full, ExitStack() as others:
        port = full.getsockname()[1]
        for _ in range(4):
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex((host, port))
        yield port


def http_destination(url: str, **fields: object) -> Destination:
    return read_destination({"name": "hook", "url": url, "timeout": 5_000, **fields})


class HttpSite:
    name, keeps_headers, tells_repeats_apart = "http", True, False

    def __init__(self) -> None:
        self.endpoint = Endpoint()

    async def outlet(self) -> HttpOutlet:
        return HttpOutlet(http_destination(self.endpoint.url), Credentials(), LOOPBACK)

    async def received(self, count: int) -> list[Received]:
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                while len(self.endpoint.requests) < count:  # noqa: ASYNC110  # a list that the endpoint fills
                    await asyncio.sleep(0.01)
        return [received_of(request) for request in self.endpoint.requests]

    async def stop(self) -> None:
        await self.endpoint.stop()

    async def start(self) -> None:
        await self.endpoint.start()


def received_of(request: HttpRequest) -> Received:
    """A message as a receiver reads it, who knows docs/guides/destinations.md."""
    key: bytes | None = None
    if (encoded := request.all("duemq-key-base64")) != []:
        key = b64decode(encoded[0])
    elif (plain := request.all("duemq-key")) != []:
        key = plain[0].encode()
    headers: list[tuple[str, bytes | None]] = [
        (name, value.encode())
        for name, value in request.headers
        if name not in _NOT_OF_THE_MESSAGE and not name.startswith(("duemq-", "webhook-"))
    ]
    if (exact := request.all("duemq-headers")) != []:
        headers = [
            (name, b64decode(text) if rest else None if text is None else text.encode())
            for name, text, *rest in json.loads(exact[0])
        ]
    payload = None if request.all("duemq-null") == ["true"] else request.body
    return Received(request.one("duemq-id"), key, headers, payload)
