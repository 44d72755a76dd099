"""Reading request bodies and headers, within limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from duemq.model.errors import Rejected
from duemq.model.timing import shown
from duemq.web.admission import share_of

SMALL_BODY_BYTES = 64 << 10
_HEADERS: Final = "duemq.headers"  # where the headers by name are, in the scope of a request


def headers_of(scope: Scope) -> Mapping[bytes, bytes]:
    """The headers by (lower-case) name; of several with one name the first."""
    headers: Mapping[bytes, bytes] | None = scope.get(_HEADERS)
    if headers is None:
        headers = scope[_HEADERS] = dict(reversed(scope["headers"]))
    return headers


def header(request: Request, name: bytes) -> str | None:
    """The first header of this (lower-case) name. Quicker than `request.headers`, which decodes them all."""
    value = headers_of(request.scope).get(name)
    return None if value is None else value.decode("latin-1")


def check_fields(body: Iterable[str], fields: Sequence[str]) -> None:
    """Raises Rejected `unknown_field`, which names the first field that is not known, and those that are."""
    for name in body:
        if name not in fields:
            listed = f"known {'is' if len(fields) == 1 else 'are'} {', '.join(fields)}"
            raise Rejected("unknown_field", f"{shown(name)} is not a field here; {listed}", name[:80])


async def read_body(request: Request, limit: int, code: str = "payload_too_large") -> bytes | bytearray:
    """The whole body. One of more than `limit` bytes is refused with `code` as early as that is known.

    Raises Unavailable before it reads a body for which there is no room beside those of other requests. The server
    below reads the rest of a refused body and throws it away, so that the client gets to the answer.
    """
    length = header(request, b"content-length")
    taken_bytes = int(length) if length is not None and length.isdecimal() else 0
    if taken_bytes > limit:
        raise _too_large(limit, code)
    share, receive = share_of(request), request.receive
    share.take_body(taken_bytes)
    message = await receive()
    body: bytes | bytearray = message.get("body", b"")
    if message.get("more_body"):
        body = bytearray(body)  # to join the parts of 32 MiB in the end would take 25 ms
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")
            size = len(body)
            if size > limit:
                raise _too_large(limit, code)
            if size > taken_bytes:  # sent in chunks, without a word of how many there will be
                share.take(size - taken_bytes)
                taken_bytes = size
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    if len(body) > limit:
        raise _too_large(limit, code)
    return body


def _too_large(limit: int, code: str) -> Rejected:
    return Rejected(code, f"the body has more than {limit} bytes, the limit for this request")
