"""The session that every load and reading process uses: by HTTP, or by frames."""

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
    """TLS verification for a client of the server: as DUEMQ_CA_FILE and its like say."""
    return client_context(tls_files()) if url.startswith("https:") else True


Session = aiohttp.ClientSession | FrameSession


def session(url: str, connections: int, timeout_s: float = 60.0) -> Session:
    """A session whose paths are relative to `url`: of at most `connections` connections, or one by frames for a URL
    that begins with `frames+`."""
    if url.startswith(PREFIX):
        return FrameSession(url, timeout_s)
    return http_session(url, connections, timeout_s)


def http_session(url: str, connections: int, timeout_s: float = 60.0) -> aiohttp.ClientSession:
    """A session by HTTP. Each connection is kept alive."""
    return aiohttp.ClientSession(
        url,
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=600, ssl=trusted(url)),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        headers={"Accept-Encoding": "identity"},
        read_bufsize=1 << 22,
    )


def now_ms() -> float:
    """Wall clock, epoch ms with fractions: the clock that due times are compared with."""
    return time.time_ns() / 1e6
