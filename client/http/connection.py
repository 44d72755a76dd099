"""Where the server is and how to talk to it. The one module of the SDK that reads the environment."""

from __future__ import annotations

import os
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import httpx

import duemq
from duemq.tls.contexts import client_context
from duemq.tls.files import TlsFiles

DEFAULT_URL = "http://127.0.0.1:8787"
STREAM_SILENCE_S = 60.0
"""A stream that says nothing for so long is opened again: the connection may be dead without either side knowing."""


def tls_files(ca_file: str | None = None, cert_file: str | None = None, key_file: str | None = None) -> TlsFiles:
    """Paths of PEM files, by the environment where they are not given."""
    names = ("DUEMQ_CA_FILE", "DUEMQ_CERT_FILE", "DUEMQ_KEY_FILE")
    ca, cert, key = (
        str(path or os.environ.get(name) or "")
        for path, name in zip((ca_file, cert_file, key_file), names, strict=True)
    )
    return TlsFiles(ca, cert, key)


def http_options(url: str | None, api_key: str | None, timeout: float, files: TlsFiles | None = None) -> dict[str, Any]:
    """Arguments for httpx's clients. `timeout` is in seconds, per attempt to connect, write or read.

    `files`: of TLS, for https://; None = those of the environment. A server on this machine is reached without the
    proxies of the environment, which know another machine of that address, and would be given the API key. Raises
    `ValueError` for a URL that cannot be one of a server, `BadConfig` for files that cannot be used.
    """
    base = url or os.environ.get("DUEMQ_URL") or DEFAULT_URL
    base = base if "://" in base else f"http://{base}"
    if not _is_server(base):
        raise ValueError(f"{base!r} is not the URL of a server, such as {DEFAULT_URL}")
    parts = urlsplit(base)
    host = parts.hostname or ""
    headers = {"User-Agent": f"duemq-python/{duemq.__version__}"}
    if key := api_key or os.environ.get("DUEMQ_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    options: dict[str, Any] = {"base_url": base, "headers": headers, "timeout": timeout}
    if parts.scheme == "http":
        # Without TLS there is nothing to verify, and loading the system's certificates takes longer than a request.
        return options | {"verify": False, "trust_env": not _is_loopback(host)}
    if files := tls_files() if files is None else files:
        return options | {"verify": client_context(files), "trust_env": not _is_loopback(host)}
    if _is_loopback(host):
        # The certificates that the environment names are for this host, too: only its proxies are not.
        return options | {"verify": httpx.create_ssl_context(), "trust_env": False}
    return options


def _is_server(url: str) -> bool:
    try:
        parts, _ = urlsplit(url), httpx.URL(url)
        host = "" if parts.port == 0 else parts.hostname or ""  # the port is judged when it is read
    except (ValueError, httpx.InvalidURL):
        return False
    # httpx takes a space for a part of a name.
    return parts.scheme in ("http", "https") and host != "" and all(char.isalnum() or char in "-._:%" for char in host)


def _is_loopback(host: str) -> bool:
    """Whether it is this machine, whatever a resolver says."""
    name = host.rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_unspecified)


def stream_timeout(timeout: float) -> httpx.Timeout:
    return httpx.Timeout(timeout, read=STREAM_SILENCE_S)
