"""httpx's client for asyncio, with workarounds for faults in httpcore."""

from __future__ import annotations

import ssl
import traceback
from typing import Any
from urllib.request import getproxies

import httpx

from duemq.client.http.frames.frame_transport import FrameTransport

_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts no certificate


def internal_http(tls: ssl.SSLContext | None = None, **options: Any) -> AsyncHttp:
    """A client for other processes of a cluster, which are reached directly, without the proxies of the environment.

    With `tls` only https:// is spoken: otherwise a changed address in ZooKeeper could redirect `node.token` to a
    stranger. Without `tls`, no certificates are loaded: that takes 20 ms per client.
    """
    return AsyncHttp(trust_env=False, verify=tls or _NO_CERTIFICATES, https_only=tls is not None, **options)


class AsyncHttp(httpx.AsyncClient):
    """Raises `httpx.ConnectError` for a connection that the server resets right after accepting it.

    A process that dies with connections in its backlog does that. With uvloop such a connection has lost its socket;
    httpcore 1.0 requests the socket before it sends anything, and raises AttributeError. Raises `httpx.ReadError` if
    TLS ends with an error, such as a server's refusal of our certificate.

    `https_only`: raise `httpx.UnsupportedProtocol` for http://. `frames`: use frames if the server speaks them, and no
    proxy is between.
    """

    def __init__(self, *, https_only: bool = False, frames: bool = False, **options: Any) -> None:
        has_proxy = options.get("trust_env", True) and getproxies()
        if frames and options.get("transport") is None and not has_proxy:
            options["transport"] = FrameTransport(options.get("verify", True))
        super().__init__(**options)
        self._https_only = https_only

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        if self._https_only and request.url.scheme != "https":
            detail = f"{request.url.host} is not reached by TLS, which node.ca_file and node.cert_file require"
            raise httpx.UnsupportedProtocol(detail, request=request)
        try:
            return await super().send(request, **options)
        except ssl.SSLError as error:  # httpcore 1.0 does not convert the errors of anyio's TLS after a handshake
            raise httpx.ReadError(str(error), request=request) from error
        except AttributeError as error:
            if not any(frame.name == "get_extra_info" for frame in traceback.extract_tb(error.__traceback__)):
                raise
            raise httpx.ConnectError("the connection was reset before the request was sent", request=request) from error
