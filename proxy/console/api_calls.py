"""Calls the API inside the process, so that pages use the same code as the API's clients.

A call goes through the API's table of endpoints with the caller's grant, so all rules of the API apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import unquote, urlencode

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from duemq.model.errors import Rejected, Unavailable
from duemq.proxy.access import OUTER, TOUCHED
from duemq.proxy.api.endpoint import Router, Service
from duemq.proxy.console.caller import grant_of
from duemq.proxy.table import ENDPOINTS

_MAX_IDS: Final = 20  # ids of one call that the trail records


@cache
def _router() -> Router:
    return Router(ENDPOINTS)


async def call_api(
    service: Service,
    request: Request,
    method: str,
    path: str,
    query: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """Call an API endpoint, and return the body of its response as JSON values. `path` is percent-encoded.

    Raises Rejected or Unavailable as the endpoint does; Rejected `not_found` if there is no such endpoint.
    """
    content = b"" if body is None else orjson.dumps(body)
    if method != "GET":
        ids = (body or {}).get("ids") or [move["id"] for move in (body or {}).get("moves", ())]
        request.scope.setdefault(TOUCHED, []).append(" ".join((method, path, *map(str, ids[:_MAX_IDS]))))
    inner = Request(_scope(request, method, path, query, content, headers), _receive(request, content))
    match = _router().open(inner, _router().find(inner), grant_of(request))
    if match.handler is None:
        raise Rejected("not_found", f"this server does not know {method} {path}")
    response = await match.handler(service, inner)
    content = await _content(response, inner)
    document: Any = orjson.loads(content) if content else None
    if response.status_code >= 500:
        raise Unavailable(document["detail"])
    if response.status_code >= 400:
        raise Rejected(document["code"], document["detail"], document.get("field"))
    return document


async def _content(response: Response, inner: Request) -> bytes:
    """The body of a response, even if it is sent in pieces."""
    if type(response).__call__ is Response.__call__:
        return bytes(response.body)
    pieces: list[bytes] = []

    async def take(message: Message) -> None:
        pieces.append(message.get("body", b""))

    await response(inner.scope, inner.receive, take)
    return b"".join(pieces)


def _scope(
    request: Request, method: str, path: str, query: Mapping[str, str] | None, content: bytes,
    headers: Mapping[str, str] | None,
) -> dict[str, Any]:  # fmt: skip
    scope = {name: value for name, value in request.scope.items() if name not in ("duemq.headers", "path_params")}
    fields = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    if content:
        fields += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    return scope | {
        "method": method, "path": unquote(path), "raw_path": path.encode(), "headers": fields,
        "query_string": urlencode(query or {}).encode(), OUTER: request.scope.get(OUTER, request.scope),
    }  # fmt: skip


def _receive(request: Request, content: bytes) -> Any:
    """An ASGI `receive` that first returns the body, and then the client's events, such as a disconnect."""
    waiting = [content]

    async def receive() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await request.receive()

    return receive
