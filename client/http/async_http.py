"""httpx's client for asyncio, with a workaround for a fault in httpcore."""

from __future__ import annotations

import traceback
from typing import Any

import httpx


class AsyncHttp(httpx.AsyncClient):
    """Raises `httpx.ConnectError` for a connection that the server resets right after it accepted it.

    A process that dies with connections in its backlog does that. With uvloop such a connection has no socket any more;
    httpcore 1.0 asks for the socket before it sends anything, and raises AttributeError.
    """

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        try:
            return await super().send(request, **options)
        except AttributeError as error:
            if not any(frame.name == "get_extra_info" for frame in traceback.extract_tb(error.__traceback__)):
                raise
            raise httpx.ConnectError("the connection was reset before the request was sent", request=request) from error
