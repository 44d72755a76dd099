"""A connection of frames: its requests in flight, and limits on their bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from httptools import HttpParserInvalidURLError
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import FlowControl

from duemq.model.errors import Unavailable
from duemq.model.frames.frame import (
    CANCEL,
    CREDIT,
    GOING_AWAY,
    MAX_STREAMS,
    NUMBER,
    PING,
    PONG,
    REQUEST,
    Frame,
    FrameError,
    FrameReader,
    pack,
    request_of,
)
from duemq.model.timing import shown
from duemq.web.frames.frame_stream import FrameStream
from duemq.web.problem import unavailable_response
from duemq.web.request_target import target_of

log = logging.getLogger(__name__)

_UNREAD_BYTES: Final = 256 << 10  # of bodies that no application has received; above this, nothing more is read
_OF_UPGRADE: Final = frozenset((
    b"connection", b"upgrade", b"content-type", b"content-length", b"transfer-encoding", b"accept", b"expect",
    b"last-event-id", b"idempotency-key", b"if-none-match", b"if-match",
))  # fmt: skip


class FrameHost(Protocol):
    """The HTTP connection that was upgraded."""

    transport: asyncio.Transport
    flow: FlowControl
    tasks: set[asyncio.Task[None]]

    def begin_streams(self) -> None: ...
    def finish_streams(self) -> None: ...
    def charge(self, size: int) -> bool:
        """Count `size` more bytes that wait here. False if too many bytes wait on all connections together."""


class FrameConnection:
    """`scope`: the scope of the request that asked for the upgrade. Its headers, without those about its own body, are
    also headers of each request on the connection. `marks` returns what a new request's scope must have in addition."""

    def __init__(
        self, host: FrameHost, app: ASGIApp, scope: dict[str, Any], marks: Callable[[], dict[str, Any]]
    ) -> None:
        self._host, self._app, self._marks = host, app, marks
        self._scope = {name: scope[name] for name in ("type", "asgi", "http_version", "server", "client", "scheme")}
        self._scope["root_path"] = ""
        self._headers = [pair for pair in scope["headers"] if pair[0] not in _OF_UPGRADE]
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        self._streams: dict[int, FrameStream] = {}
        self._unread = 0  # the bytes of bodies that no application has received
        self._charged = 0  # those bytes, and those of an incomplete frame
        self._going_away = False

    @property
    def in_flight(self) -> int:
        return len(self._streams)

    @property
    def has_partial_frame(self) -> bool:
        return self._reader.waiting_bytes > 0

    # --- events of the transport ----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._on_frame(frame)
            self._recount()
        except FrameError as error:
            self._close(str(error))

    def writing_changed(self) -> None:
        """Called when the transport has paused or resumed writing."""
        self._recount()

    def lost(self) -> None:
        for stream in self._streams.values():
            stream.end()
        self._host.charge(-self._charged)

    # --- for streams ----------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if not self._host.transport.is_closing():
            self._host.transport.write(data)

    @property
    def writing_paused(self) -> bool:
        return self._host.flow.write_paused

    async def drain(self) -> None:
        await self._host.flow.drain()

    def go_away(self, reason: str = "") -> None:
        """Ask the client to send nothing more on this connection, and close it after the last response."""
        if not self._going_away:
            self._going_away = True
            self.write(pack(GOING_AWAY, 0, reason.encode()))
        if not self._streams:
            self._host.transport.close()

    # --- frames ---------------------------------------------------------------------------------------------------

    def _on_frame(self, frame: Frame) -> None:
        stream = self._streams.get(frame.stream)
        if frame.kind == REQUEST:
            if stream is not None:
                raise FrameError(f"stream {frame.stream} has a request in flight")
            self._begin(frame)
        elif frame.kind == CREDIT:
            if len(frame.payload) != NUMBER.size:
                raise FrameError("a credit is a number of four bytes")
            if stream is not None:  # None: the response is complete
                stream.grant(NUMBER.unpack(frame.payload)[0])
        elif frame.kind == CANCEL:
            if stream is not None:
                stream.end()
        elif frame.kind == PING:
            self.write(pack(PONG, frame.stream, frame.payload))
        else:
            raise FrameError(f"there is no kind {frame.kind} of frames")

    def _begin(self, frame: Frame) -> None:
        request = request_of(frame.payload)
        try:
            target = target_of(request.url)
        except (UnicodeDecodeError, HttpParserInvalidURLError) as error:
            raise FrameError("the target of a request is not a path of UTF-8, percent-encoded") from error
        fields = request.fields
        if request.body:
            fields.append((b"content-length", b"%d" % len(request.body)))
            if all(name != b"content-type" for name, _ in fields):
                fields.append((b"content-type", b"application/json"))
        scope = {
            **self._scope, **self._marks(), "method": request.method, "path": target.path,
            "raw_path": target.raw_path, "query_string": target.query_string, "headers": fields + self._headers,
        }  # fmt: skip
        app = self._app
        if len(self._streams) >= MAX_STREAMS:
            app = unavailable_response(Unavailable(f"{MAX_STREAMS} requests are in flight on this connection"))
        stream = FrameStream(self, frame.stream, request.body, self._on_taken, bare=request.method == "HEAD")
        self._unread += len(request.body)
        if not self._streams:
            self._host.begin_streams()
        self._streams[frame.stream] = stream
        task = self._loop.create_task(self._serve(app, scope, frame.stream, stream), name="request by frames")
        self._host.tasks.add(task)
        task.add_done_callback(self._host.tasks.discard)

    async def _serve(self, app: ASGIApp, scope: dict[str, Any], number: int, stream: FrameStream) -> None:
        try:
            await app(scope, stream.receive, stream.send)
        except Exception:
            log.exception(
                "a request by frames failed: %s %s", scope["method"], shown(scope["path"]),
                extra={"action": "http.failed"},
            )  # fmt: skip
        finally:
            stream.break_off()
            del self._streams[number]
            if stream.body_bytes:
                self._on_taken(stream.body_bytes)
            if not self._streams:
                self._host.finish_streams()
                if self._going_away:
                    self._host.transport.close()

    def _on_taken(self, size: int) -> None:
        self._unread -= size
        self._recount()

    def _recount(self) -> None:
        """Charge the waiting bytes, and pause reading if there are too many."""
        transport = self._host.transport
        if transport.is_closing():
            return
        waiting = self._unread + self._reader.waiting_bytes
        change, self._charged = waiting - self._charged, waiting
        if change and not self._host.charge(change):
            self._close("too many bytes of requests wait here")
            return
        if self.writing_paused or self._unread > _UNREAD_BYTES:
            self._host.flow.pause_reading()
        else:
            self._host.flow.resume_reading()

    def _close(self, reason: str) -> None:
        log.debug("a connection of frames ends: %s", reason, extra={"action": "http.malformed"})
        self.write(pack(GOING_AWAY, 0, reason.encode()))
        for stream in self._streams.values():
            stream.end()
        self._host.transport.close()
