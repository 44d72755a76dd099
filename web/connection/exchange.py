"""One request and its answer on an HTTP connection: uvicorn's cycle, plus a single write for a finished answer."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from duemq.web.frames.frame_stream import FrameStream

_NO_BODY: Final = frozenset((204, 304))


class Exchange(RequestResponseCycle):
    """Streams are sent through `send`, as in ASGI; a finished answer through `respond`."""

    # Initial values, which uvicorn sets one by one in each instance.
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
        """Write head and body with one system call: the same bytes as `send` writes with two.

        False, without writing, if `send` has to wait, to refuse, or to omit the body.
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
    """Send a response: a finished one with one write, if `send` is that of an `Exchange` or a `FrameStream`."""
    exchange = getattr(send, "__self__", None)
    if (
        isinstance(exchange, _WHOLE)
        and type(response).__call__ is Response.__call__
        and response.background is None
        and exchange.answer(response.status_code, response.raw_headers, response.body)
    ):
        return
    await response(scope, receive, send)
