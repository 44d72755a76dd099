"""Reads request bodies and headers, within limits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from duemq.model.errors import Rejected, Unavailable
from duemq.web.admission.admission import Share, share_of

SMALL_BODY_BYTES = 64 << 10
_HEADERS: Final = "duemq.headers"  # key in a request's scope: its headers by name


def headers_of(scope: Scope) -> Mapping[bytes, bytes]:
    """The headers by (lower-case) name; if a name is repeated, its first header."""
    headers: Mapping[bytes, bytes] | None = scope.get(_HEADERS)
    if headers is None:
        headers = scope[_HEADERS] = dict(reversed(scope["headers"]))
    return headers


def header(request: Request, name: bytes) -> str | None:
    """The first header with this (lower-case) name. This is faster than `request.headers`, which decodes all
    headers."""
    value = headers_of(request.scope).get(name)
    return None if value is None else value.decode("latin-1")


async def read_body(request: Request, limit: int, code: str = "payload_too_large") -> bytes | bytearray:
    """The whole body. A body of more than `limit` bytes is refused with `code` as early as possible.

    Raises Unavailable before reading a body if the bodies of other requests leave no room for it. The HTTP server reads
    and discards the rest of a refused body, so that the client gets to the point of reading the response.
    """
    length = header(request, b"content-length")
    taken_bytes = int(length) if length is not None and length.isdecimal() else 0
    if taken_bytes > limit:
        raise _too_large(limit, code)
    share = share_of(request)
    share.reserve_body(taken_bytes)
    if not getattr(getattr(request.receive, "__self__", None), "more_body", True):  # the whole body came with the head
        return await _receive_body(request, limit, code, taken_bytes)
    async with body_under_way(share):
        return await _receive_body(request, limit, code, taken_bytes)


async def _receive_body(request: Request, limit: int, code: str, taken_bytes: int) -> bytes | bytearray:
    receive = request.receive
    message = await receive()
    body: bytes | bytearray = message.get("body", b"")
    if message.get("more_body"):
        body = bytearray(body)  # joining the parts of 32 MiB at the end would take 25 ms
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")
            size = len(body)
            if size > limit:
                raise _too_large(limit, code)
            if size > taken_bytes:  # chunked, of unknown size
                share_of(request).take(size - taken_bytes)
                taken_bytes = size
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    if len(body) > limit:
        raise _too_large(limit, code)
    return body


@asynccontextmanager
async def body_under_way(share: Share) -> AsyncIterator[None]:
    """Limits the time to read a body. Raises Unavailable if the body takes too long or is dropped for other
    requests."""
    try:
        async with share.begin_body():
            yield
    except TimeoutError as error:
        share.lose_body()
        raise Unavailable("the body did not arrive in time, and was dropped for other requests") from error
    finally:
        share.finish_body()


def _too_large(limit: int, code: str) -> Rejected:
    return Rejected(code, f"the body has more than {limit} bytes, the limit for this request")
