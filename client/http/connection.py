"""Decides how to connect to the server, and explains failures. The only module of the SDK that reads environment
variables."""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

import httpx

import duemq
from duemq.client.http.errors import Unreachable
from duemq.tls.contexts import client_context
from duemq.tls.files import TlsFiles

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8787"
STREAM_SILENCE_S = 60.0
"""A stream on which nothing arrives for this time is reopened: the connection may be broken without an error on either
side."""
_REFUSED: Final = re.compile(r"alert (?:\w+ )*(?:certificate|unknown ca)")
_OTHER_NAME: Final = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_UNKNOWN_AUTHORITY: Final = (18, 19, 20, 21)  # a self-signed certificate, or one with unknown issuers
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
_NOT_SENT: Final = (
    httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError, httpx.UnsupportedProtocol
)  # fmt: skip


class OfProcess(Generic[T]):
    """A value that each process creates separately: with a shared value, parent and child would read from the same
    connections after a fork, and receive answers to each other's requests."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._pid, self._value = os.getpid(), make()

    @property
    def value(self) -> T:
        if self._pid != (pid := os.getpid()):
            # Concurrent threads may each create a value; the last one is kept.
            self._value, self._pid = self._make(), pid
        return self._value


def tls_files(ca_file: str | None = None, cert_file: str | None = None, key_file: str | None = None) -> TlsFiles:
    """Paths of PEM files; those not given are read from the environment."""
    names = ("DUEMQ_CA_FILE", "DUEMQ_CERT_FILE", "DUEMQ_KEY_FILE")
    ca, cert, key = (
        str(path or os.environ.get(name) or "")
        for path, name in zip((ca_file, cert_file, key_file), names, strict=True)
    )
    return TlsFiles(ca, cert, key)


def http_options(url: str | None, api_key: str | None, timeout: float, files: TlsFiles | None = None) -> dict[str, Any]:
    """Arguments for httpx's clients. `timeout` is in seconds, per attempt to connect, write or read.

    `files`: the PEM files for TLS; None = those set in the environment. For a server on this machine, the environment's
    proxies are not used: for a proxy, a loopback address means the proxy's own machine, and it would receive the API
    key. Raises `ValueError` for an invalid server URL, and `BadConfig` for unusable files.
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
        # The certificates set in the environment apply to this host, too; the proxies do not.
        return options | {"verify": httpx.create_ssl_context(), "trust_env": False}
    return options


def _is_server(url: str) -> bool:
    try:
        parts, _ = urlsplit(url), httpx.URL(url)
        host = "" if parts.port == 0 else parts.hostname or ""  # reading the port checks it
    except (ValueError, httpx.InvalidURL):
        return False
    # The characters are checked here because httpx accepts a space in a host name.
    return parts.scheme in ("http", "https") and host != "" and all(char.isalnum() or char in "-._:%" for char in host)


def _is_loopback(host: str) -> bool:
    """Whether the host is this machine by its name or address, without asking a resolver."""
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


def unreachable(error: httpx.TransportError, http: httpx.Client | httpx.AsyncClient) -> Unreachable:
    """The error to raise for a failed exchange. It states whether the outcome is unknown."""
    base = str(http.base_url).rstrip("/")
    if _REFUSED.search(str(error)):  # with TLS 1.3, the refusal arrives only after our side of the handshake has ended
        return Unreachable(f"{base} refuses the certificate of this client: {error}", outcome_unknown=False)
    if isinstance(error, _NOT_SENT):
        return Unreachable(f"cannot connect to {base}: {_reason(error, http)}", outcome_unknown=False)
    if isinstance(error, httpx.TimeoutException):
        return Unreachable(f"{base} did not answer in time; the outcome is not known", outcome_unknown=True)
    detail = f"the connection to {base} broke before the answer came; the outcome is not known"
    return Unreachable(detail, outcome_unknown=True)


def _reason(error: httpx.TransportError, http: httpx.Client | httpx.AsyncClient) -> str:
    """Why the connection failed, and what the user can do about it."""
    url = http.base_url
    for cause in _causes(error):
        match cause:
            case ConnectionRefusedError():
                return "no server listens there; start one with `duemq serve`, or name another (--url, DUEMQ_URL)"
            case socket.gaierror():
                return f"no address is known for {url.host}: {cause.strerror}"
            case ssl.SSLCertVerificationError() if cause.verify_code in _OTHER_NAME:
                return f"its certificate is for another name: {cause.verify_message}"
            case ssl.SSLCertVerificationError() if cause.verify_code in _UNKNOWN_AUTHORITY:
                advice = "name the file with its authority (ca_file, --ca-file, DUEMQ_CA_FILE)"
                return f"its certificate is not trusted ({cause.verify_message}); {advice}"
            case ssl.SSLCertVerificationError():
                return f"its certificate is not accepted: {cause.verify_message}"
            case ssl.SSLError() if cause.reason in _NO_TLS:
                return f"it does not speak TLS: say {url.copy_with(scheme='http')}".rstrip("/")
    if isinstance(error, httpx.PoolTimeout):
        return "all connections of this client are in use"
    if isinstance(error, httpx.ConnectTimeout):
        return f"no answer within {http.timeout.connect:g} s"
    return str(error) or type(error).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The chain of causes, starting with the error itself. It includes exception groups, because asyncio tries all
    addresses of a host name and groups the errors."""
    yield error
    # httpcore does not set `__cause__`, so follow `__context__`, down to an OSError: its context is not a cause, but an
    # exception that the caller was handling.
    cause = error.__cause__ or (None if isinstance(error, OSError) else error.__context__)
    for further in error.exceptions if isinstance(error, BaseExceptionGroup) else (cause,):
        if further is not None:
            yield from _causes(further)
