"""One request and its response on an HTTP connection: uvicorn's cycle, with a single write for a finished response."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from duemq.web.frames.frame_stream import FrameStream

_NO_BODY: Final = frozenset((204, 304))


class Exchange(RequestResponseCycle):
    """Sends a stream through `send`, as in ASGI, and a finished response through `respond`."""

    # Initial values as class attributes, because uvicorn sets them one by one in each instance.
    disconnected = False
    more_body = True
    response_started = response_complete = False
    chunked_encoding: bool | None = None
    expected_content_length = 0
    access_log = False

    def __init__(self, connection: HttpToolsProtocol, scope: Any, keep_alive: bool, expects_100: bool) -> None:
        self.scope, self.transport, self.flow = scope, connection.transport, connection.flow
        self.logger, self.default_headers = connection.logger, connection.server_state.default_headers
        self.on_response = connection.on_response_complete
        self.keep_alive, self.waiting_for_100_continue = keep_alive, expects_100
        self.message_event, self.body = asyncio.Event(), bytearray()

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes | memoryview) -> bool:
        """Write head and body with one system call. These are the same bytes that `send` writes with two calls.

        Writes nothing and returns False if `send` would have to wait, to refuse, or to leave out the body.
        """
        if (
            self.response_started or self.disconnected or self.flow.write_paused
            or self.scope["method"] == "HEAD" or status in _NO_BODY
        ):  # fmt: skip
            return False
        head = b"".join([b"%b: %b\r\n" % pair for pair in headers])
        if head.count(b"\n") != len(headers) or head.count(b"\r") != len(headers):
            return False  # a line break within a header: `send` refuses it
        if not self.keep_alive:
            head += b"connection: close\r\n"
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[status], head, bytes(body)))
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
        return True


_WHOLE: Final = (Exchange, FrameStream)


async def respond(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send a response. A finished response needs only one write if `send` belongs to an `Exchange` or a
    `FrameStream`."""
    exchange = getattr(send, "__self__", None)
    if (
        isinstance(exchange, _WHOLE)
        and type(response).__call__ is Response.__call__
        and response.background is None
        and exchange.answer(response.status_code, response.raw_headers, response.body)
    ):
        return
    await response(scope, receive, send)
