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
    """A client for other processes in a cluster. It connects directly, without the proxies set in the environment.

    With `tls`, it only allows https://: otherwise, changing an address in ZooKeeper could redirect `node.token` to a
    stranger. Without `tls`, it loads no certificates, because that takes 20 ms per client.
    """
    return AsyncHttp(trust_env=False, verify=tls or _NO_CERTIFICATES, https_only=tls is not None, **options)


class AsyncHttp(httpx.AsyncClient):
    """An HTTP client. It raises `httpx.ConnectError` for a connection that is reset right after the server's host
    accepted it, and `httpx.ReadError` if TLS ends with an error, such as the server's refusal of our certificate.

    Such a reset occurs if a process dies with connections in its backlog. With uvloop, the connection then has no
    socket any more; httpcore 1.0 requests the socket before it sends anything, and raises AttributeError.

    `https_only`: raise `httpx.UnsupportedProtocol` for http://. `frames`: use frames if the server supports them and
    the environment sets no proxy.
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
