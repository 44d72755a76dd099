"""The HTTP session that every load and reading process uses."""

import asyncio
import time

import aiohttp

JSON = {"Content-Type": "application/json"}
TROUBLE = (
    aiohttp.ClientError,
    asyncio.TimeoutError,
    OSError,
)  # what became of the request is open


def session(url: str, connections: int, timeout_s: float = 60.0) -> aiohttp.ClientSession:
    """A session of at most `connections` connections, each kept alive; paths are relative to `url`."""
    return aiohttp.ClientSession(
        url,
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=600),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        headers={"Accept-Encoding": "identity"},
        read_bufsize=1 << 22,
    )


def now_ms() -> float:
    """Wall clock, epoch ms with fractions: the clock that due times are judged by."""
    return time.time_ns() / 1e6
