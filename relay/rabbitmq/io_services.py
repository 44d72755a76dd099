"""IO for pika on the event loop's own transports. Everything published in one turn of the loop is sent in one write.

pika's own IO (`pika.adapters.utils.io_services_utils`) makes one system call per frame, that is, three per message.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

from pika.adapters.utils import nbio_interface as interface

from duemq.relay.network.resolver import Resolver


class IoServices(interface.AbstractIOServices):  # type: ignore[misc]  # pika has no types
    """IO for one connection on an event loop that is already running: pika must neither run nor close it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, resolver: Resolver) -> None:
        self._loop, self._resolver = loop, resolver
        self._host = ""
        self._work: IoWork | None = None
        self._stream: IoStream | None = None

    @property
    def heard_at(self) -> float:
        """When data last arrived from the broker, on the loop's clock."""
        return 0.0 if self._stream is None else self._stream.heard_at

    def abort(self, why: str = "given up") -> None:
        """End the current task and the connection. pika then reports a lost connection, or nothing if no connection was
        open."""
        if self._work is not None:
            self._work.cancel()
        if self._stream is not None:
            self._stream.give_up(why)

    def get_native_ioloop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def run(self) -> None:
        raise NotImplementedError

    close = stop = run

    def add_callback_threadsafe(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay, callback)

    def getaddrinfo(
        self, host: str, port: int, on_done: Callable[..., None], family: int = 0, socktype: int = 0, proto: int = 0,
        flags: int = 0,
    ) -> IoWork:  # fmt: skip
        self._host = host

        async def checked() -> list[Any]:
            return [
                (socket.AF_INET6 if ":" in address else socket.AF_INET, socktype, proto, "", (address, port))
                for address in await self._resolver.addresses(host)
            ]

        return self._begin(checked(), on_done)

    def connect_socket(self, sock: socket.socket, resolved_addr: Any, on_done: Callable[..., None]) -> IoWork:
        async def connect() -> None:
            try:
                await self._loop.sock_connect(sock, resolved_addr)
            except BaseException:  # the address is marked as failed, so that the next attempt starts with another one
                self._resolver.failed(self._host, resolved_addr[0])
                raise

        return self._begin(connect(), on_done)

    def create_streaming_connection(
        self, protocol_factory: Callable[[], Any], sock: socket.socket, on_done: Callable[..., None],
        ssl_context: ssl.SSLContext | None = None, server_hostname: str | None = None,
    ) -> IoWork:  # fmt: skip
        async def connect() -> tuple[Any, Any]:
            stream = IoStream(self._loop, protocol_factory)
            try:
                await self._loop.create_connection(
                    lambda: stream, sock=sock, ssl=ssl_context, server_hostname=server_hostname
                )
            except BaseException:
                sock.close()
                raise
            self._stream = stream
            return stream, stream.get_protocol()

        return self._begin(connect(), on_done)

    def _begin(self, work: Coroutine[Any, Any, Any], on_done: Callable[[Any], None]) -> IoWork:
        """Start a task. Only the latest is remembered, because pika never runs two at a time."""
        self._work = IoWork(work, on_done)
        return self._work


class IoWork(interface.AbstractIOReference):  # type: ignore[misc]
    """A task that ends with a call of `on_done` with its result or error, unless it is cancelled."""

    def __init__(self, work: Coroutine[Any, Any, Any], on_done: Callable[[Any], None]) -> None:
        def done(task: asyncio.Task[Any]) -> None:
            if not task.cancelled():
                on_done(task.exception() or task.result())

        self._task = asyncio.create_task(work, name="RabbitMQ")
        self._task.add_done_callback(done)

    def cancel(self) -> bool:
        return self._task.cancel()


class IoStream(asyncio.Protocol, interface.AbstractStreamTransport):  # type: ignore[misc]
    """Connects asyncio's transport to pika's protocol."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol_factory: Callable[[], Any]) -> None:
        self._loop, self._factory = loop, protocol_factory
        self._transport: Any = None
        self._protocol: Any = None
        self._pieces: list[bytes] = []
        self._reason: Exception | None = None
        self.heard_at = loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._protocol = self._factory()
        self._protocol.connection_made(self)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        self._protocol.data_received(data)

    def eof_received(self) -> bool:
        return bool(self._protocol.eof_received())

    def connection_lost(self, error: Exception | None) -> None:
        self._protocol.connection_lost(error or self._reason)

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)

    def _flush(self) -> None:
        if self._pieces and not self._transport.is_closing():
            self._transport.write(b"".join(self._pieces))
        self._pieces.clear()

    def abort(self) -> None:
        self._flush()
        self._transport.abort()

    def give_up(self, why: str) -> None:
        """End the connection without a request from pika."""
        self._reason = ConnectionAbortedError(why)
        self._transport.abort()

    def get_protocol(self) -> Any:
        return self._protocol

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._pieces)) + int(self._transport.get_write_buffer_size())
