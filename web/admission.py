"""The bounds of a server: how many requests are under way, and how many bytes they hold.

What is over a bound is refused at once with 503, before any of it is read: nothing waits in memory for better times.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duemq.model.errors import Unavailable
from duemq.web.problem import unavailable_response
from duemq.web.request_id import RequestIds

_SHARE: Final = "duemq.share"  # where the share of a request is, in its scope
# Who watches a server sees it also while it is full.
_WATCHED: Final = frozenset(("/livez", "/healthz", "/readyz", "/metrics"))
_SMALL_BYTES: Final = 256 << 10  # the largest body that may use the reserve
_RESERVE: Final = 4  # a quarter of all bytes is for small bodies: large bodies and unread pages cannot use it up


class Admission:
    """`max_requests`: under way at a time. `max_bytes`: their bodies, and the records read for their answers."""

    def __init__(self, max_requests: int = 4096, max_bytes: int = 64 << 20) -> None:
        self._max_requests, self._max_bytes = max_requests, max_bytes
        self.requests = self.bytes = 0

    def enter(self, scope: Scope) -> Share:
        """The share of a request, which has to be closed. Raises Unavailable."""
        if self.requests >= self._max_requests and scope["path"] not in _WATCHED:
            raise Unavailable(f"{self.requests} requests are under way here, as many as http.max_requests allows")
        self.requests += 1
        share = scope[_SHARE] = Share(self)
        return share

    @property
    def left(self) -> int:
        return self._max_bytes - self.bytes

    @property
    def spare(self) -> int:
        """What is left without the reserve."""
        return self.left - self._max_bytes // _RESERVE

    def room(self, own: int, *, small: bool = False) -> int:
        """How many bytes a request may still take that has `own`. Alone, it may take what its own limits allow."""
        if self.bytes <= own:
            return 1 << 62
        return self.left if small else self.spare


class Share:
    """What one request takes up of an `Admission`."""

    __slots__ = ("_admission", "bytes")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.bytes = 0

    def take_body(self, size: int) -> None:
        """Take a body of a known size: a small one may use the reserve."""
        self.take(size, small=size <= _SMALL_BYTES)

    def take(self, size: int, *, small: bool = False) -> None:
        """Raises Unavailable where so many bytes are too many, with those of all other requests."""
        admission = self._admission
        if size > admission.room(self.bytes, small=small):
            raise Unavailable(
                f"requests with {admission.bytes} bytes are under way here, and http.max_inflight_bytes has no room "
                f"for {size} more"
            )
        self.bytes += size
        admission.bytes += size

    def give_back(self, size: int) -> None:
        self.bytes -= size
        self._admission.bytes -= size

    def close(self) -> None:
        self._admission.requests -= 1
        self._admission.bytes -= self.bytes
        self.bytes = 0


class AdmissionMiddleware:
    """An application behind an `Admission`. Each of its answers gets a request id."""

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app, self._admission = app, admission
        self._next_id = RequestIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = self._next_id()

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id)]
            await send(message)

        try:
            share = self._admission.enter(scope)
        except Unavailable as error:
            await unavailable_response(error)(scope, receive, send_named)
            return
        try:
            await self._app(scope, receive, send_named)
        finally:
            share.close()


def share_of(request: Request) -> Share:
    """The share of a request that was admitted."""
    share: Any = request.scope[_SHARE]
    assert isinstance(share, Share)
    return share
