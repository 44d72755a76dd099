"""Limits how many requests a server has in flight, and how many bytes they use.

A request over a limit is refused at once with 503, before any of it is read; nothing queues in memory. A body that does
not arrive does not keep its place: the oldest incomplete body is dropped for a new request. Strangers, which are
callers without a grant, share a small pool of places; there are limits on their places per address (docs/adr/0067) and
on their pace.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duemq.model.errors import Unavailable
from duemq.web.admission.stranger_pace import StrangerPace
from duemq.web.problem import unavailable_response
from duemq.web.request_id import RequestIds

_SHARE: Final = "duemq.share"  # key in a request's scope: its share
# Monitoring must reach a server even while it is full.
_WATCHED: Final = frozenset(("/livez", "/healthz", "/readyz", "/metrics"))
_SMALL_BYTES: Final = 256 << 10  # the largest body that may use the reserve
_RESERVE: Final = 4  # a quarter of all bytes is only for small bodies: large ones cannot use it
_BRIEF_S: Final = 1.0  # a body that began more recently is not dropped

STRANGERS: Final = 64
"""The most requests without a grant that may be in flight."""
STRANGERS_OF_ADDRESS: Final = 16
"""The most of them from one address."""
STRANGERS_BYTES: Final = 1 << 20
STRANGER_BODY_S: Final = 5.0


class Admission:
    """Admits requests. `max_requests`: how many may be in flight. `max_bytes`: the most bytes of their bodies and of
    the records read for their responses.

    `on_stranger_refused` is called for each stranger that gets no place, `on_body_ended` for each body that was late or
    was dropped.
    """

    def __init__(self, max_requests: int = 4096, max_bytes: int = 64 << 20) -> None:
        self._max_requests, self._max_bytes = max_requests, max_bytes
        self.requests = self.bytes = 0
        self.strangers = Strangers()
        self._bodies: dict[Share, None] = {}  # shares with incomplete bodies, oldest first
        self.on_stranger_refused: Callable[[], None] = lambda: None
        self.on_body_ended: Callable[[], None] = lambda: None

    def enter(self, scope: Scope) -> Share:
        """Admit a request, and return its share, which the caller must close. Raises Unavailable."""
        if scope["path"] in _WATCHED:
            return _put(scope, Share(self, 0))
        if self.requests >= self._max_requests and not self.make_room():
            raise Unavailable(f"{self.requests} requests are in flight here, the limit of http.max_requests")
        self.requests += 1
        return _put(scope, Share(self))

    @property
    def left(self) -> int:
        return self._max_bytes - self.bytes

    @property
    def spare(self) -> int:
        """How many bytes are left, not counting the reserve."""
        return self.left - self._max_bytes // _RESERVE

    def room(self, own: int, *, small: bool = False) -> int:
        """How many more bytes a request that has taken `own` bytes may take. If it is the only request with bytes, it
        may take what its own limits allow."""
        if self.bytes <= own:
            return 1 << 62
        return self.left if small else self.spare

    def make_room(self, size: int = 0, address: str = "", *, strangers: bool = False) -> bool:
        """Drop the oldest incomplete bodies, to make room for one request or for `size` bytes. `strangers`: drop only
        strangers' bodies; `address`: only those from this address. If that would not be enough, drop nothing and return
        False."""
        freed, ended = 0, list[Share]()
        for share in self._oldest_bodies():
            if strangers and (share.address is None or (address and share.address != address)):
                continue
            freed += share.bytes
            ended.append(share)
            if freed >= size:
                for one in ended:
                    one.end_body()
                return True
        return False

    def _oldest_bodies(self) -> Iterator[Share]:
        if not self._bodies:
            return
        since = asyncio.get_running_loop().time() - _BRIEF_S
        for share in self._bodies:
            if share.body_since > since:
                return
            yield share

    def record_body(self, share: Share, *, open_: bool) -> None:
        if open_:
            self._bodies[share] = None
        else:
            self._bodies.pop(share, None)


class Strangers:
    """What all callers without a grant use together."""

    def __init__(self) -> None:
        self.bytes = 0
        self.by_address = Counter[str]()
        self.pace = StrangerPace()

    @property
    def requests(self) -> int:
        return self.by_address.total()

    def leave(self, address: str) -> None:
        self.by_address[address] -= 1
        if not self.by_address[address]:
            del self.by_address[address]


class Share:
    """The part of an `Admission` that one request uses. `requests`: 1, or 0 for a request that is not counted."""

    __slots__ = ("_admission", "_body", "_requests", "address", "body_since", "bytes")

    def __init__(self, admission: Admission, requests: int = 1) -> None:
        self._admission, self._requests = admission, requests
        self.bytes = 0
        self.address: str | None = None  # the address of a stranger; None for any other caller
        self.body_since = 0.0  # in s, by the loop's clock
        self._body: asyncio.Timeout | None = None

    async def wait_as_stranger(self, address: str) -> None:
        """Wait until it is the turn of this request, which has no grant. Raises Unavailable if too many requests
        wait."""
        if not self._requests:
            return
        wait_s = self._admission.strangers.pace.wait_s(address, asyncio.get_running_loop().time())
        if wait_s is None:
            self._admission.on_stranger_refused()
            raise Unavailable("too many requests without a key wait here")
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    def count_as_stranger(self, address: str) -> None:
        """Count this from now on as a request without a grant. Raises Unavailable."""
        admission, strangers = self._admission, self._admission.strangers
        if not self._requests:
            return
        for count, most, of in (
            (strangers.by_address[address], STRANGERS_OF_ADDRESS, address),
            (strangers.requests, STRANGERS, ""),
        ):
            if count >= most and not admission.make_room(0, of, strangers=True):
                admission.on_stranger_refused()
                where = f"from {of} " if of else ""
                raise Unavailable(f"{count} requests without a key are in flight {where}here, the limit")
        strangers.by_address[address] += 1
        self.address = address

    def reserve_body(self, size: int) -> None:
        """Take the bytes of a body of known size. A small body may use the reserve."""
        self.take(size, small=size <= _SMALL_BYTES)

    def take(self, size: int, *, small: bool = False) -> None:
        """Take `size` more bytes. Raises Unavailable if all requests together would have too many."""
        admission = self._admission
        if self.address is not None and admission.strangers.bytes + size > STRANGERS_BYTES:
            admission.on_stranger_refused()
            raise Unavailable("requests without a key have too many bytes in flight here")
        room = admission.room(self.bytes, small=small)
        if size > room and not admission.make_room(size - room):
            raise Unavailable(
                f"requests with {admission.bytes} bytes are in flight here, and http.max_inflight_bytes has no room "
                f"for {size} more"
            )
        self.bytes += size
        admission.bytes += size
        if self.address is not None:
            admission.strangers.bytes += size

    def give_back(self, size: int) -> None:
        self.bytes -= size
        self._admission.bytes -= size
        if self.address is not None:
            self._admission.strangers.bytes -= size

    def begin_body(self) -> asyncio.Timeout:
        """A context within which to read the body. A TimeoutError means that the body took too long or was dropped."""
        self._body = asyncio.timeout(None if self.address is None else STRANGER_BODY_S)
        self.body_since = asyncio.get_running_loop().time()
        self._admission.record_body(self, open_=True)
        return self._body

    def end_body(self) -> None:
        """Drop the body, if it is incomplete."""
        self._admission.record_body(self, open_=False)
        if self._body is not None:
            self._body.reschedule(self.body_since)

    def lose_body(self) -> None:
        """Count a body that was late or was dropped."""
        self._admission.on_body_ended()

    def finish_body(self) -> None:
        self._admission.record_body(self, open_=False)

    def close(self) -> None:
        self._admission.requests -= self._requests
        self.give_back(self.bytes)
        if self.address is not None:
            self._admission.strangers.leave(self.address)


def _put(scope: Scope, share: Share) -> Share:
    scope[_SHARE] = share
    return share


class AdmissionMiddleware:
    """Passes admitted requests to an application, and adds a request id to each response."""

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
