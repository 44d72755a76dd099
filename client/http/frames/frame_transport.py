"""The SDK's transport: it sends requests as frames if the server supports them, otherwise over HTTP."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

import httpx

from duemq.client.http.frames.frame_link import FrameLink, PendingAnswer, open_link
from duemq.model.frames.frame import LAST, MAX_PAYLOAD, MAX_STREAMS, FrameAnswer, pack_request

_NO_FRAMES_S: Final = 60.0  # time until a server, or a load balancer, that did not support frames is tried again
_OF_CONNECTION: Final = frozenset((b"authorization", b"user-agent"))
_OMITTED: Final = _OF_CONNECTION | {
    b"host", b"accept-encoding", b"connection", b"content-length", b"content-type", b"accept"
}  # fmt: skip
_API: Final = b"/v1/"


class FrameTransport(httpx.AsyncBaseTransport):
    """Sends requests as frames or over HTTP. `verify`: the TLS context for https, as in httpx."""

    def __init__(self, verify: ssl.SSLContext | bool) -> None:
        self._http = httpx.AsyncHTTPTransport(verify=verify)
        self._tls = verify if isinstance(verify, ssl.SSLContext) else None
        self._link: FrameLink | None = None
        self._opening = asyncio.Lock()
        self._places = asyncio.Semaphore(MAX_STREAMS)
        self._not_before = 0.0  # before this time (s, monotonic clock), frames are not tried

    @property
    def is_open(self) -> bool:
        """Whether a connection for frames is open in this event loop."""
        link = self._link
        return link is not None and not link.closed and link.loop is asyncio.get_running_loop()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        payload = self._payload(request)
        link = None if payload is None else await self._open(request)
        if link is None or payload is None:
            return await self._http.handle_async_request(request)
        async with self._places:
            timeout: dict[str, Any] = request.extensions.get("timeout", {})
            began = asyncio.get_running_loop().time()
            try:
                pending = link.request(payload)
            except ConnectionError as error:
                raise httpx.ConnectError(str(error), request=request) from error
            try:
                async with asyncio.timeout(timeout.get("read")):
                    return _response(await pending.head(), pending)
            except TimeoutError as error:
                link.doubt(began)
                raise httpx.ReadTimeout("no answer in time", request=request) from error
            except ConnectionError as error:
                raise httpx.ReadError(str(error), request=request) from error

    async def aclose(self) -> None:
        if self._link is not None:
            self._link.close()
        await self._http.aclose()

    def _payload(self, request: httpx.Request) -> bytes | None:
        """The request as the payload of a frame; None if it must be sent over HTTP."""
        target = request.url.raw_path
        if not target.startswith(_API) or time.monotonic() < self._not_before:
            return None
        try:
            body = request.content
        except httpx.RequestNotRead:  # a stream
            return None
        fields = []
        for name, value in request.headers.raw:
            lower = name.lower()
            if lower not in _OMITTED or _is_unusual(lower, value):
                fields.append((lower, value))
        payload = pack_request(request.method.encode(), target, fields, body)
        return payload if len(payload) <= MAX_PAYLOAD else None

    async def _open(self, request: httpx.Request) -> FrameLink | None:
        if self.is_open:
            return self._link
        async with self._opening:
            if self.is_open:
                return self._link
            url, tls = request.url, None
            if url.scheme == "https":
                tls = self._tls
                if tls is None:
                    return None
            self._link = None
            fields = [pair for pair in request.headers.raw if pair[0].lower() in _OF_CONNECTION]
            port = url.port or (443 if tls else 80)
            timeout: dict[str, Any] = request.extensions.get("timeout", {})
            with suppress(OSError, TimeoutError):  # the HTTP request fails, too, and reports the cause
                async with asyncio.timeout(timeout.get("connect")):
                    self._link = await open_link(url.host, port, fields, tls)
                if self._link is None:
                    self._not_before = time.monotonic() + _NO_FRAMES_S
            return self._link


class _Body(httpx.AsyncByteStream):
    def __init__(self, head: FrameAnswer, pending: PendingAnswer) -> None:
        self._head, self._pending = head, pending

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._pending.parts(self._head):
                yield part
        except ConnectionError as error:
            raise httpx.RemoteProtocolError(str(error)) from error

    async def aclose(self) -> None:
        self._pending.close()


def _response(head: FrameAnswer, pending: PendingAnswer) -> httpx.Response:
    fields = head.fields
    if all(name != b"content-type" for name, _ in fields):
        fields.append((b"content-type", b"application/json"))
    if head.what == LAST:
        return httpx.Response(head.status, headers=fields, content=head.body)
    return httpx.Response(head.status, headers=fields, stream=_Body(head, pending))


def _is_unusual(name: bytes, value: bytes) -> bool:
    """Whether a field's value differs from the one that the server assumes if it is omitted."""
    if name == b"accept":
        return value != b"*/*"
    return name == b"content-type" and value != b"application/json"
