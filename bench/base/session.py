"""The HTTP session that every load and reading process uses."""

import asyncio
import ssl
import time

import aiohttp

from duemq.client.http.connection import tls_files
from duemq.tls.contexts import client_context

JSON = {"Content-Type": "application/json"}
TROUBLE = (
    aiohttp.ClientError,
    asyncio.TimeoutError,
    OSError,
)  # what became of the request is open


def trusted(url: str) -> ssl.SSLContext | bool:
    """For a client of a server with TLS: what DUEMQ_CA_FILE and its like say."""
    return client_context(tls_files()) if url.startswith("https:") else True


def session(url: str, connections: int, timeout_s: float = 60.0) -> aiohttp.ClientSession:
    """A session of at most `connections` connections, each kept alive; paths are relative to `url`."""
    return aiohttp.ClientSession(
        url,
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=600, ssl=trusted(url)),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        headers={"Accept-Encoding": "identity"},
        read_bufsize=1 << 22,
    )


def now_ms() -> float:
    """Wall clock, epoch ms with fractions: the clock that due times are judged by."""
    return time.time_ns() / 1e6
