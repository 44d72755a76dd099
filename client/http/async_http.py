"""httpx's client for asyncio, with a workaround for a fault in httpcore."""

from __future__ import annotations

import ssl
import traceback
from typing import Any

import httpx

_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # it trusts no certificate


def plain_http(**options: Any) -> AsyncHttp:
    """A client for other processes of a cluster, which are reached by http:// and directly: a proxy of the environment
    is meant for the way out. No certificates are loaded for it: that takes 20 ms for each client."""
    return AsyncHttp(trust_env=False, verify=_NO_CERTIFICATES, **options)


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
