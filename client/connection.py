"""Where the server is and how to talk to it. The one module of the SDK that reads the environment."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

import httpx

import duemq

DEFAULT_URL = "http://127.0.0.1:8787"
STREAM_SILENCE_S = 60.0
"""A stream that says nothing for so long is opened again: the connection may be dead without either side knowing."""


def http_options(url: str | None, api_key: str | None, timeout: float) -> dict[str, Any]:
    """Arguments for httpx's clients. `timeout` is in seconds, per attempt to connect, write or read.

    Raises `ValueError` for a URL that cannot be one of a server.
    """
    base = url or os.environ.get("DUEMQ_URL") or DEFAULT_URL
    base = base if "://" in base else f"http://{base}"
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{base!r} is not the URL of a server, such as {DEFAULT_URL}")
    headers = {"User-Agent": f"duemq-python/{duemq.__version__}"}
    if key := api_key or os.environ.get("DUEMQ_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    # Without TLS there is nothing to verify, and loading the system's certificates takes longer than a request.
    return {"base_url": base, "headers": headers, "timeout": timeout, "verify": parts.scheme == "https"}


def stream_timeout(timeout: float) -> httpx.Timeout:
    return httpx.Timeout(timeout, read=STREAM_SILENCE_S)
