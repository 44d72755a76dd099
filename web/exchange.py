"""One request and its answer on an HTTP connection: the cycle of uvicorn, which can write a finished answer as one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

if TYPE_CHECKING:
    from duemq.web.protocol import HttpConnection

_EXCHANGE: Final = "duemq.exchange"  # where the exchange of a request is, in its scope
_NO_BODY: Final = frozenset((204, 304))


class Exchange(RequestResponseCycle):
    """See `answer_whole`."""

    def __init__(self, connection: HttpConnection, scope: Any, keep_alive: bool, expects_100: bool) -> None:
        super().__init__(
            scope, connection.transport, connection.flow, connection.logger, connection.access_logger,
            connection.access_log, connection.server_state.default_headers, asyncio.Event(), expects_100, keep_alive,
            connection.on_response_complete,
        )  # fmt: skip
        scope[_EXCHANGE] = self

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write head and body with one call of the system. False, and nothing is done, where `send` has to decide."""
        if (
            self.response_started or self.disconnected or self.flow.write_paused
            or self.scope["method"] == "HEAD" or status in _NO_BODY
        ):  # fmt: skip
            return False
        head = b"".join([b"%b: %b\r\n" % pair for pair in headers])
        if head.count(b"\n") != len(headers) or head.count(b"\r") != len(headers):
            return False  # a header has an end of line in it: `send` says so
        if not self.keep_alive:
            head += b"connection: close\r\n"
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[status], head, body))
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
        return True


def answer_whole(scope: Scope, response: Response) -> bool:
    """Give a finished answer to the connection as a whole. False where it has to be sent as ASGI says."""
    exchange: Exchange | None = scope.get(_EXCHANGE)
    if exchange is None or type(response).__call__ is not Response.__call__ or response.background is not None:
        return False
    return exchange.answer(response.status_code, response.raw_headers, bytes(response.body))
