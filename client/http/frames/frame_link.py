"""A connection to a server that supports frames: many requests may be in flight, and answers come in any order."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Final, cast

from duemq.model.frames.frame import (
    ANSWER,
    BROKEN_OFF,
    CANCEL,
    CREDIT,
    DATA,
    GOING_AWAY,
    LAST,
    NUMBER,
    PATH,
    PING,
    PROTOCOL,
    REQUEST,
    Frame,
    FrameAnswer,
    FrameError,
    FrameReader,
    answer_of,
    pack,
)

_PING_S: Final = 25.0  # servers close a connection that is silent for longer than `http.keep_alive`
_MAX_HEAD: Final = 64 << 10
_Fields = Sequence[tuple[bytes, bytes]]


class FrameLink(asyncio.Protocol):
    """The connection; `open_link` creates it. `loop`: the event loop that it belongs to. `closed`: no further request
    may be sent on it."""

    def __init__(self, host: bytes, fields: _Fields) -> None:
        self.loop = asyncio.get_running_loop()
        self.upgraded: asyncio.Future[bool] = self.loop.create_future()
        self.closed = False
        self._upgrade = (host, fields)
        self._head = b""
        self._reader = FrameReader()
        self._streams: dict[int, PendingAnswer] = {}
        self._next = 1
        self._pinged: asyncio.TimerHandle | None = None
        self._heard_at = self.loop.time()
        self.transport: asyncio.Transport

    def request(self, payload: bytes) -> PendingAnswer:
        """Send a request (see `pack_request`). Raises ConnectionError if the connection is closed."""
        if self.closed:
            raise ConnectionError("the connection has ended")
        number = self._next
        self._next = number % 0xFFFF_FFFF + 1
        self._streams[number] = pending = PendingAnswer(self, number)
        self.transport.write(pack(REQUEST, number, payload))
        return pending

    def grant(self, number: int, size: int) -> None:
        if number in self._streams:
            self.transport.write(pack(CREDIT, number, NUMBER.pack(size)))

    def doubt(self, since: float) -> None:
        """Abort the connection if nothing was received since a time (s, on the loop's clock): the server may be
        gone."""
        if self._heard_at < since:
            self.closed = True
            self.transport.abort()

    def forget(self, number: int) -> None:
        """Cancel a request, unless its answer is complete."""
        if self._streams.pop(number, None) is not None and not self.transport.is_closing():
            self.transport.write(pack(CANCEL, number))
        self._close_if_done()

    def close(self) -> None:
        self.closed = True
        self.transport.close()

    # --- events of the transport ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of it
        host, fields = self._upgrade
        lines = b"".join([b"%b: %b\r\n" % field for field in fields])
        head = b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: Upgrade\r\nUpgrade: %b\r\n%b\r\n"
        self.transport.write(head % (PATH, host, PROTOCOL, lines))

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        if not self.upgraded.done():
            head, end, data = (self._head + data).partition(b"\r\n\r\n")
            self._head = head
            if not end and len(head) <= _MAX_HEAD:
                return
            speaks = head.startswith(b"HTTP/1.1 101 ")
            self.upgraded.set_result(speaks)
            if not speaks:
                self.close()
                return
            self._ping()
        try:
            for frame in self._reader.feed(data):
                self._on_frame(frame)
        except FrameError:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._pinged is not None:
            self._pinged.cancel()
        if not self.upgraded.done():
            self.upgraded.set_result(False)
        for stream in self._streams.values():
            stream.lose(exc)
        self._streams.clear()

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind == GOING_AWAY:
            self.closed = True
            self._close_if_done()
        stream = self._streams.get(frame.stream)
        if stream is None:  # the frame is a PONG, or its request was cancelled
            return
        if frame.kind == ANSWER:
            answer = answer_of(frame.payload)
            stream.begin(answer)
            what = answer.what
        elif frame.kind == DATA and frame.payload:
            what = frame.payload[0]
            stream.feed(what, frame.payload[1:])
        else:
            return
        if what in (LAST, BROKEN_OFF):
            self._streams.pop(frame.stream, None)
            self._close_if_done()

    def _close_if_done(self) -> None:
        if self.closed and not self._streams:
            self.transport.close()

    def _ping(self) -> None:
        self._pinged = self.loop.call_later(_PING_S, self._ping)
        self.doubt(self.loop.time() - 2 * _PING_S)
        if not self.closed:
            self.transport.write(pack(PING, 0))


class PendingAnswer:
    """The answer to one request, read while it arrives."""

    def __init__(self, link: FrameLink, number: int) -> None:
        self._link, self._number = link, number
        self._head: asyncio.Future[FrameAnswer] = asyncio.get_running_loop().create_future()
        self._parts: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()  # bounded by the credit

    async def head(self) -> FrameAnswer:
        """The answer's head, with the first part of the body. Raises ConnectionError if the connection ends before it
        arrives."""
        try:
            return await self._head
        except asyncio.CancelledError:
            self.close()
            raise

    async def parts(self, head: FrameAnswer) -> AsyncIterator[bytes]:
        """The parts of the body. Raises ConnectionError if the body is incomplete."""
        what, part = head.what, head.body
        while True:
            if part:
                yield part
            if what == LAST:
                return
            if what == BROKEN_OFF:
                raise ConnectionError("the answer is incomplete")
            self._link.grant(self._number, len(part))
            what, part = await self._parts.get()

    def close(self) -> None:
        """Cancel the request, unless the answer is complete."""
        self._link.forget(self._number)

    # --- called by the link ---------------------------------------------------------------------------------------

    def begin(self, head: FrameAnswer) -> None:
        if not self._head.done():
            self._head.set_result(head)

    def feed(self, what: int, part: bytes) -> None:
        self._parts.put_nowait((what, part))

    def lose(self, error: Exception | None) -> None:
        if not self._head.done():
            self._head.set_exception(ConnectionError(f"the connection ended before the answer: {error or 'closed'}"))
            self._head.exception()  # marks it as retrieved: the caller may no longer wait for it
        self.feed(BROKEN_OFF, b"")


async def open_link(host: str, port: int, fields: _Fields, tls: ssl.SSLContext | None) -> FrameLink | None:
    """Open a connection. Returns None if the server does not support frames. Raises OSError."""
    name = f"[{host}]" if ":" in host else host
    loop = asyncio.get_running_loop()
    _, link = await loop.create_connection(
        lambda: FrameLink(f"{name}:{port}".encode(), fields), host, port, ssl=tls, server_hostname=host if tls else None
    )
    try:
        return link if await link.upgraded else None
    except asyncio.CancelledError:
        link.close()
        raise
