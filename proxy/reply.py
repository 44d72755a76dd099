"""Finished JSON answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_SLICE_BYTES = 256 << 10


class JsonResponse(Response):
    """`content` is anything orjson can write."""

    media_type = "application/json"

    def __init__(self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(orjson.dumps(content), status, headers)


class PageResponse(Response):
    """Sent slice by slice, each when the client has read most of the one before: it is not done before it is sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        for start in range(0, max(len(body), 1), _SLICE_BYTES):
            more = start + _SLICE_BYTES < len(body)
            await send({"type": "http.response.body", "body": body[start : start + _SLICE_BYTES], "more_body": more})
