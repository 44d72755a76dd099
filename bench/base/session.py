"""The session that every sending and reading process uses: by HTTP or by frames."""

import asyncio
import ssl
import time

import aiohttp

from duemq.bench.base.frame_session import PREFIX, FrameSession
from duemq.client.http.connection import tls_files
from duemq.tls.contexts import client_context

JSON = {"Content-Type": "application/json"}
TROUBLE = (
    aiohttp.ClientError,
    asyncio.TimeoutError,
    OSError,
)  # the outcome of the request is unknown


def trusted(url: str) -> ssl.SSLContext | bool:
    """TLS verification for a client of the server, as set by DUEMQ_CA_FILE and similar variables."""
    return client_context(tls_files()) if url.startswith("https:") else True


Session = aiohttp.ClientSession | FrameSession


def session(url: str, connections: int, timeout_s: float = 60.0) -> Session:
    """A session whose paths are relative to `url`. It has at most `connections` connections, or one connection with
    frames if the URL begins with `frames+`."""
    if url.startswith(PREFIX):
        return FrameSession(url, timeout_s)
    return http_session(url, connections, timeout_s)


def http_session(url: str, connections: int, timeout_s: float = 60.0) -> aiohttp.ClientSession:
    """A session by HTTP, with keep-alive connections."""
    return aiohttp.ClientSession(
        url,
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=600, ssl=trusted(url)),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        headers={"Accept-Encoding": "identity"},
        read_bufsize=1 << 22,
    )


def now_ms() -> float:
    """The wall clock, epoch ms with fractions. Due times are compared with this clock."""
    return time.time_ns() / 1e6
