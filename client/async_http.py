"""httpx's client for asyncio, but for a fault of what is below it."""

from __future__ import annotations

import traceback
from typing import Any

import httpx


class AsyncHttp(httpx.AsyncClient):
    """Raises an `httpx.TransportError` also for a connection that is reset in the moment in which it is there.

    A process that dies with connections in its backlog does that. With uvloop such a connection has no socket any more,
    and httpcore 1.0, which asks for it before it sends anything, ends with an AttributeError.
    """

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        try:
            return await super().send(request, **options)
        except AttributeError as error:
            if not any(frame.name == "get_extra_info" for frame in traceback.extract_tb(error.__traceback__)):
                raise
            raise httpx.ConnectError("the connection was reset before the request was sent", request=request) from error
