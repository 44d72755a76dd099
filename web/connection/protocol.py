"""One connection of an HTTP server: uvicorn's protocol, with the limits and the graceful closing that it lacks."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, ClassVar, Final, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from duemq.model.frames.frame import PATH, PROTOCOL
from duemq.web.body import headers_of
from duemq.web.connection.connections import DRAINING, Connections
from duemq.web.connection.exchange import Exchange
from duemq.web.frames.frame_connection import FrameConnection
from duemq.web.problem import malformed_answer
from duemq.web.request_target import target_of
from duemq.web.same_origin import SAFE_METHODS
from duemq.web.tls.transport import TlsTransport

log = logging.getLogger(__name__)

# uvicorn logs a warning for each malformed request and each Upgrade, so any client could fill the log.
_quiet: Final = logging.getLogger("uvicorn.error.connection")
_quiet.setLevel(logging.ERROR)

_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}
_VERSIONS = frozenset(("1.0", "1.1"))
_AHEAD = 100  # the most pipelined requests that wait for a response; each takes some KiB
_UPGRADED: Final = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: %b\r\n\r\n" % PROTOCOL
_LINGER_S = 1.0  # time for the client to read the last response, or to show that it is still there


class HttpProtocol(HttpToolsProtocol):
    """One connection. Each server has a subclass with its `Connections` as a class attribute: see
    `connection_class`."""

    among: ClassVar[Connections]
    # The exchange for the newest request, which may not be the one being served.
    cycle: RequestResponseCycle | None  # type: ignore[assignment]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = _quiet
        self.since = 0.0  # when it became idle or served; all times are by the loop's clock
        self.head_since: float | None = None  # when the first part of a head came
        self.unread_since: float | None = None  # when the unsent bytes exceeded the transport's high-water mark
        self._served: RequestResponseCycle | None = None
        self._frames: FrameConnection | None = None  # set by the upgrade
        self._unbounded = 0  # bytes of an incomplete head, or of neither head nor body
        self._open_head_bytes = 0  # how many bytes of an incomplete head the parser may have stored
        self._moved = False  # whether the latest data contained part of a body
        self._deaf = False  # whether further data is read and discarded
        self._fault = ""  # the problem with a head that could be parsed

    @property
    def sends_body(self) -> bool:
        """Whether the client can still send more of the body of the current or last request."""
        return self._is_unfinished and self.cycle is self._served

    @property
    def _is_unfinished(self) -> bool:
        """Whether the newest request's body is incomplete."""
        return self.cycle is not None and self.cycle.more_body

    @property
    def has_asked(self) -> bool:
        """Whether the client has sent a request."""
        return self.cycle is not None or self._frames is not None

    @property
    def can_ask_again(self) -> bool:
        """Whether closing the connection leaves the current request without effect, so that the client can repeat
        it."""
        served = self._served
        return served is not None and (served.more_body or served.scope["method"] in SAFE_METHODS)

    def close_after_answer(self) -> None:
        """Close the connection after the current response, or after the next one if the current head has been sent
        already: the head must announce it."""
        if self._frames is not None:
            self._frames.go_away()
        elif self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    # --- events of the transport ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since = self.loop.time()
        self.among.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.among.remove(self)
        self.among.open_head_bytes -= self._open_head_bytes
        if self._frames is not None:
            self._frames.lost()
        if self._served is not None and not self._served.response_complete:  # the newest exchange is notified below
            self._served.disconnected = True
            self._served.message_event.set()
        self._unset_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._frames is not None:
            self._receive_frames(self._frames, data)
            return
        self._moved = False
        super().data_received(data)
        if self._frames is not None:
            return
        if self.scope is None or "method" not in self.scope:  # the parser sets it when a head is complete
            if self.head_since is None:
                # Data that came with the first part may belong to another request.
                self.head_since, self._unbounded = self.loop.time(), 1
            else:
                self._unbounded += len(data)
        elif self._is_unfinished and not self._moved:  # the data is chunk extensions or trailer fields
            self.head_since = None
            self._unbounded += len(data)
        else:
            self.head_since, self._unbounded = None, 0
            if self._open_head_bytes:
                self.among.open_head_bytes -= self._open_head_bytes
                self._open_head_bytes = 0
            return
        self._open_head_bytes += len(data)
        self.among.open_head_bytes += len(data)
        limits = self.among.limits
        if self._deaf:
            return
        if self._unbounded > limits.head_bytes:
            self._refuse("head_too_large", f"a head may have {limits.head_bytes} bytes here")
        elif self.among.open_head_bytes > limits.unsent_bytes:
            self._refuse("unavailable", f"{self.among.open_head_bytes} bytes of heads without their ends are held here")

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client has closed its half. It still gets the responses to its requests, if it is still there."""
        if not self._closes_behind_last():
            return False
        self._deaf = True
        self.loop.call_later(_LINGER_S, self._leave_reader)
        return True

    def pause_writing(self) -> None:
        self.unread_since = self.loop.time()
        self.among.does_not_read(self)
        super().pause_writing()
        if self._frames is not None:
            self._frames.writing_changed()

    def resume_writing(self) -> None:
        self.unread_since = None
        self.among.reads(self)
        super().resume_writing()
        if self._frames is not None:
            self._frames.writing_changed()

    # --- events of the parser -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self.scope = {  # type: ignore[typeddict-item]
            "type": "http", "asgi": _ASGI, "http_version": "1.1", "server": self.server, "client": self.client,
            "scheme": self.scheme, "root_path": "", "headers": self.headers,
        }  # fmt: skip

    def on_headers_complete(self) -> None:
        scope, version = self.scope, self.parser.get_http_version()
        headers = headers_of(cast(Any, scope))
        hosts = 1 if b"host" in headers else 0
        if len(headers) < len(self.headers):  # some headers are repeated
            hosts = [name for name, _ in self.headers].count(b"host")
        if version not in _VERSIONS:
            self._fault = f"HTTP/{version} is not supported here, HTTP/1.1 is"
        elif hosts > 1 or (hosts == 0 and version != "1.0"):
            self._fault = f"a request has one Host, this one has {hosts}"
        elif version == "1.0" and b"transfer-encoding" in headers:  # RFC 9112, 6.1: the end of its body is unknown
            self._fault = "HTTP/1.0 has no Transfer-Encoding"
        elif len(self.pipeline) >= _AHEAD:
            self._fault = f"more than {_AHEAD} requests wait for their turn on this connection"
        if self._fault:
            raise ValueError(self._fault)  # stops the parser
        scope["method"] = self.parser.get_method().decode("ascii")
        if version != "1.1":
            scope["http_version"] = version
        try:
            scope["path"], scope["raw_path"], scope["query_string"] = target_of(self.url)
        except UnicodeDecodeError:
            self._fault = "the path is not UTF-8, percent-encoded"
            raise
        if self.parser.should_upgrade() and self._should_upgrade():
            return
        before, keep_alive = self.cycle, version != "1.0" and self.parser.should_keep_alive()
        self.cycle = Exchange(self, scope, keep_alive, self.expect_100_continue)
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))
        self.headers = []  # trailer fields are not headers (RFC 9110, 6.5.1)
        if self.among.draining:
            cast(Any, self.scope)[DRAINING] = True
            self.close_after_answer()

    def on_body(self, body: bytes) -> None:
        self._moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self.cycle is not None:
            self.cycle.more_body = False  # also if a request was answered before its body was complete

    def send_400_response(self, msg: str) -> None:
        self._refuse("malformed_request", self._fault or "this cannot be read as HTTP/1.1")

    # --- events of the requests -----------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._served, self.since = cycle, self.loop.time()
        self.among.begin(self)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
            elif self.timeout_keep_alive_task is None:
                self._await_next(self.timeout_keep_alive)
        if self._served is not None and self._served.response_complete:
            self.since = self.loop.time()
            self.among.finish(self)

    def _unset_timer(self) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()

    def _await_next(self, wait_s: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(wait_s, self.timeout_keep_alive_handler)

    def _unset_keepalive_if_required(self) -> None:
        """Does nothing: setting a timer for each request would cost more than checking for new data when a timer
        ends."""

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if nothing came for long enough after the last response."""
        self.timeout_keep_alive_task = None
        served = self._served is not None and not self._served.response_complete
        if served or self._frames is not None or self.head_since is not None or self.transport.is_closing():
            return  # the next response sets the timer again
        left_s = self.since + self.timeout_keep_alive - self.loop.time()
        if left_s <= 0:
            self.transport.close()
        else:
            self._await_next(left_s)

    # --- frames ---------------------------------------------------------------------------------------------------

    def _should_upgrade(self) -> bool:
        """Whether to speak frames from now on. Any other upgrade is ignored: the request is served as usual."""
        return (
            self.scope is not None
            and self.scope.get("path", "").encode() == PATH
            and self.scope["method"] == "GET"
            and self._get_upgrade() == PROTOCOL
            and (self.cycle is None or self.cycle.response_complete)
            and not self.among.draining
        )

    def handle_websocket_upgrade(self) -> None:
        """Called by uvicorn once the head of a request with an accepted upgrade is complete."""
        self._unset_timer()
        self._frames = FrameConnection(self, self.app, cast(Any, self.scope), self._marks)
        self.transport.write(_UPGRADED)
        self.among.begin(self)
        self.finish_streams()

    def shutdown(self) -> None:
        """Called by uvicorn when the server stops."""
        if self._frames is not None:
            self._frames.go_away()
        else:
            super().shutdown()

    def begin_streams(self) -> None:
        self.since = self.loop.time()
        self.among.begin(self)

    def finish_streams(self) -> None:
        self.since = self.loop.time()
        self.among.finish(self)

    def charge(self, size: int) -> bool:
        self.among.open_head_bytes += size
        return self.among.open_head_bytes <= self.among.limits.unsent_bytes

    def _receive_frames(self, frames: FrameConnection, data: bytes) -> None:
        now = self.loop.time()
        frames.data_received(data)
        if not frames.in_flight:
            self.since = now
        if not frames.has_partial_frame:
            self.head_since = None
        elif self.head_since is None:
            self.head_since = now

    def _marks(self) -> dict[str, Any]:
        return {DRAINING: True} if self.among.draining else {}

    # --- ending it ------------------------------------------------------------------------------------------------

    def _closes_behind_last(self) -> bool:
        """Whether a complete request is in flight. If so, the response to the last such request closes the
        connection."""
        if self._is_unfinished and self.pipeline:
            self.pipeline.popleft()  # this request will never be complete
            self.cycle = self.pipeline[0][0] if self.pipeline else self._served
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        return True

    def _refuse(self, code: str, detail: str) -> None:
        """Answer a malformed request, and close the connection. If earlier requests are in flight, they get their
        responses first, and the last one closes the connection."""
        self._deaf = True
        if self.transport.is_closing():
            return
        if self._closes_behind_last():
            self.flow.resume_reading()  # unread data would reset the connection when it is closed
            return
        cycle = self.cycle
        if cycle is not None and cycle.more_body:
            answered = cycle.response_started
            cycle.disconnected = True
            cycle.waiting_for_100_continue = False  # else the 100 would be written after the end
            cycle.message_event.set()
            if answered:
                self.transport.close()
                return
        name = self.among.next_id()
        log.debug("request %s cannot be read: %s", name.decode(), detail, extra={"action": "http.malformed"})
        status, answer = malformed_answer(code, detail, name)
        # Closing at once would reset the connection while the client still sends, and the response would be lost.
        self.transport.write(STATUS_LINE[status] + answer)
        self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.abort)

    def _leave_reader(self) -> None:
        """Close the connection of a client that only reads and is being sent nothing: it has most likely gone."""
        served = self._served
        if served is None or self.transport.is_closing():
            return
        if served.scope["method"] in SAFE_METHODS and (not served.response_started or served.chunked_encoding):
            self.transport.abort()
        else:
            self.loop.call_later(_LINGER_S, self._leave_reader)


def connection_class(connections: Connections) -> type[HttpProtocol]:
    """The class of a server's connections."""
    return type("BoundedConnection", (HttpProtocol,), {"among": connections})


def over_tls(kind: type[HttpProtocol], context: ssl.SSLContext) -> Callable[..., asyncio.Protocol]:
    """The factory for the connections of a server with TLS."""

    def plain_answer() -> bytes:
        detail = "TLS is spoken here: the URL begins with https://"
        status, answer = malformed_answer("malformed_request", detail, kind.among.next_id())
        return STATUS_LINE[status] + answer

    def make(**options: Any) -> asyncio.Protocol:
        return TlsTransport(kind(**options), context, kind.among.failed, plain_answer)

    return make
