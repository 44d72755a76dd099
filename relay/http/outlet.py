"""Sends messages to an HTTP endpoint: one request per message, signed according to Standard Webhooks.

The client is pyreqwest, a Python binding for reqwest: a Rust thread next to the event loop handles connections, HTTP
and TLS. It follows no redirects, stores no cookies, and ignores proxies from the environment. If `send` is cancelled,
the request may continue until the destination's timeout: the client cannot abort it earlier.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import timedelta
from typing import Final

from pyreqwest.client import ClientBuilder
from pyreqwest.exceptions import DetailedPyreqwestError, PyreqwestError, RequestTimeoutError
from pyreqwest.http import Url
from pyreqwest.response import Response

from duemq.client.consumer.message import Message
from duemq.model.destinations.destination import Credentials, Destination
from duemq.model.destinations.http import HttpOptions
from duemq.relay.base import MAX_DETAIL, Reply, Result
from duemq.relay.http.clients import Clients
from duemq.relay.http.request import RequestFormat, fixed_headers
from duemq.relay.http.times import retry_after_ms
from duemq.relay.network.address import NoAddress
from duemq.relay.network.resolver import Lookup, Resolver
from duemq.relay.outlets import RelayPolicy
from duemq.relay.tls import UnusableCredentials

CONCURRENCY: Final = 50
_IDLE: Final = timedelta(seconds=4)
"""Less than the 5 s after which Node.js, uvicorn and other servers close an idle connection: a request sent at the
moment of closing would be lost."""
_DISCARDED_BYTES: Final = 64 << 10  # read and discarded to keep the connection; for longer bodies, that is too costly
_KEPT_BYTES: Final = 8 << 10  # more than MAX_DETAIL, so that no secret is cut in half before it is redacted
_BODY_S: Final = 1.0  # for reading the rest of a body: a slow body must not occupy a slot for long


class HttpOutlet:
    """One endpoint. `lookup`: resolves its name; None = the system's resolver."""

    def __init__(
        self, destination: Destination, credentials: Credentials, policy: RelayPolicy, lookup: Lookup | None = None
    ) -> None:
        options = destination.options
        assert isinstance(options, HttpOptions), "a destination has the options of its system"
        self.concurrency = destination.concurrency or CONCURRENCY
        self._options: Final = options
        self._timeout_s: Final = destination.timeout / 1000
        self._credentials: Final = credentials
        self._format: Final = RequestFormat(options, credentials)
        self._secrets: Final = _secrets(credentials)
        self._url: Final = _url(destination.url)
        host = "" if self._url is None else self._url.host_str or ""
        self._clients: Final = Clients(host, Resolver(policy.private_networks, lookup), self._builder)

    async def send(self, message: Message) -> Reply:
        if self._url is None:
            return Reply(Result.AWAY, "bad_url", "the host in its URL is neither a name nor an address")
        headers, body = self._format.request(message, time.time())
        try:
            client = self._clients.ready()
            if client is None:
                async with asyncio.timeout(self._timeout_s / 2):
                    client = await self._clients.current()
        except NoAddress as error:
            return Reply(Result.AWAY, error.status, str(error)[:MAX_DETAIL])
        except UnusableCredentials as error:
            return Reply(Result.AWAY, "bad_credentials", str(error))
        except TimeoutError:
            return Reply(Result.AWAY, "timeout", "looking up its name timed out")
        request = client.request(self._options.method, self._url).headers(headers).body_bytes(body)
        try:
            # The head is passed together with the start of the body, so a short body needs no second switch between
            # threads.
            async with request.streamed_read_buffer_limit(1).build_streamed() as response:
                return await self._reply(response)
        except PyreqwestError as error:
            if not_connected(error):
                self._clients.connect_failed(client)
            return unanswered(error)

    async def close(self) -> None:
        await self._clients.close()

    async def _reply(self, response: Response) -> Reply:
        status = response.status
        detail = (
            _header(response, "location")
            if 300 <= status < 400
            else (await _first_bytes(response)).decode(errors="replace")
        )
        for secret in self._secrets:  # some endpoints include the request in their answer
            detail = detail.replace(secret, "***")
        return answered(status, detail[:MAX_DETAIL], _header(response, "retry-after"), time.time(), self._options)

    def _builder(self) -> ClientBuilder:
        credentials = self._credentials
        builder = (
            ClientBuilder().follow_redirects(False).no_proxy().referer(False).http1_only().http1_lower_case_headers()
            .gzip(False).brotli(False).zstd(False).deflate(False)
            .timeout(timedelta(seconds=self._timeout_s)).connect_timeout(timedelta(seconds=self._timeout_s / 3))
            .pool_idle_timeout(_IDLE)
            .pool_max_idle_per_host(self.concurrency).user_agent("duemq")
        )  # fmt: skip
        if credentials.ca:
            # Without this check, the client would accept a text that contains no certificate, and ignore it.
            if "-----BEGIN CERTIFICATE-----" not in credentials.ca:
                raise ValueError("the CA contains no certificate in PEM form")
            builder = builder.add_root_certificate_pem(credentials.ca.encode())
        if credentials.cert:
            builder = builder.identity_pem(f"{credentials.key.get_secret_value()}\n{credentials.cert}".encode())
        return builder


def _url(text: str) -> Url | None:
    """The parsed URL. None if the client's parser rejects it, although it was accepted in the declaration."""
    try:
        return Url(text)
    except ValueError:
        return None


async def _first_bytes(response: Response) -> bytes:
    """The part of the body that arrived with the head. Errors in the rest are ignored: the status decides the
    result."""
    first = b""
    with suppress(PyreqwestError, TimeoutError):
        chunk = await response.body_reader.read_chunk()
        if chunk is None:
            return b""
        first, size = bytes(memoryview(chunk)[:_KEPT_BYTES]), _header(response, "content-length")
        if size.isdecimal() and len(chunk) < int(size[:9]) <= _DISCARDED_BYTES:
            async with asyncio.timeout(_BODY_S):
                await response.body_reader.read(_DISCARDED_BYTES)
    return first


def _header(response: Response, name: str) -> str:
    try:
        return response.get_header(name) or ""
    except ValueError:  # the value is not text
        return ""


def _secrets(credentials: Credentials) -> list[str]:
    """The secrets to redact from answers, longest first."""
    values = {value.removeprefix("Bearer ").removeprefix("Basic ") for _, value in fixed_headers(credentials)}
    values.add(credentials.password.get_secret_value())
    return sorted((value for value in values if len(value) >= 4), key=len, reverse=True)


_ALWAYS_AGAIN: Final = frozenset((408, 425, 429, 503))
_OVERLOADED: Final = frozenset((429, 503))
_NO_CONNECTION: Final = "client error (Connect)"


def answered(status: int, detail: str, retry_after: str, now_s: float, options: HttpOptions) -> Reply:
    """The reply for an HTTP answer. `retry_after`: the header Retry-After; `detail`: the start of the body."""
    if 200 <= status < 300:
        return Reply(Result.ACCEPTED, str(status), detail)
    if status == 410:
        return Reply(Result.GONE, "410", detail)
    rule = options.on_4xx if 400 <= status < 500 else options.on_5xx if status >= 500 else "retry"
    if rule == "dead_letter" and status not in _ALWAYS_AGAIN:
        return Reply(Result.REJECTED, str(status), detail)
    wait_ms = retry_after_ms(retry_after, now_s) if retry_after else None
    return Reply(Result.FAILED, str(status), detail, wait_ms, overloaded=status in _OVERLOADED)


def unanswered(error: PyreqwestError) -> Reply:
    """The reply if no answer came, or an answer that is not HTTP. AWAY means that nothing was sent."""
    causes = _causes(error)
    detail = (causes[-1] if causes else str(error.message))[:MAX_DETAIL]
    connected = not not_connected(error)
    if isinstance(error, RequestTimeoutError):
        if not connected:
            return Reply(Result.AWAY, "timeout", "no connection in time")
        return Reply(Result.FAILED, "timeout", "no answer in time", overloaded=True)
    return Reply(Result.FAILED if connected else Result.AWAY, _status(error, causes), detail)


def not_connected(error: PyreqwestError) -> bool:
    """Whether the connection failed, so that another address of the endpoint may work."""
    return _NO_CONNECTION in _causes(error)


def _causes(error: PyreqwestError) -> list[str]:
    """The texts of the nested errors, the root cause last. The outermost is left out, because it contains only the
    URL."""
    if not isinstance(error, DetailedPyreqwestError):
        return []
    return [cause["message"] for cause in (error.details or {}).get("causes") or ()][1:]


def _status(error: PyreqwestError, causes: list[str]) -> str:
    # The client's errors differ only in their texts; tests/functional/relay/test_http_endpoints.py triggers each.
    text = " ".join(causes)
    if _NO_CONNECTION in causes:
        if "refused" in text:
            return "refused"
        return "unreachable" if "os error" in text or "tcp connect" in text else "tls_error"
    if "connection closed" in text or "os error" in text:
        return "disconnected"
    return "malformed"
