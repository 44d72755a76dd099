"""Hands messages on to an HTTP endpoint: one request each, signed by Standard Webhooks.

The client is pyreqwest, reqwest for Python: the connections, HTTP and TLS are done in a thread of Rust beside the
event loop. It follows no redirects, has no cookies, and takes no proxy from the environment. A request whose `send` is
cancelled ends by the destination's time-out at the latest: the client cannot be told to end it before.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import timedelta
from typing import Final

from pyreqwest.client import ClientBuilder
from pyreqwest.exceptions import PyreqwestError
from pyreqwest.http import Url
from pyreqwest.response import Response

from duemq.client.consumer.message import Message
from duemq.model.destinations.destination import Credentials, Destination
from duemq.model.destinations.http import HttpOptions
from duemq.relay.base import MAX_DETAIL, Reply, Result
from duemq.relay.http.answers import answered, not_connected, unanswered
from duemq.relay.http.clients import Clients
from duemq.relay.http.request import RequestFormat, fixed_headers
from duemq.relay.network.addresses import NoAddress
from duemq.relay.network.resolver import Lookup, Resolver
from duemq.relay.outlets import RelayPolicy
from duemq.relay.tls import UnusableCredentials

CONCURRENCY: Final = 50
_IDLE: Final = timedelta(seconds=4)
"""Shorter than the 5 s after which servers of Node.js, uvicorn and others close an idle connection: a request that
crosses such a close is lost."""
_DISCARDED_BYTES: Final = 64 << 10  # read and dropped so that the connection can be used again; more is not worth it
_KEPT_BYTES: Final = 8 << 10  # more than MAX_DETAIL, so that no secret is cut in two before it is struck out
_BODY_S: Final = 1.0  # the status is known by then; a body that drips must not hold its place for long


class HttpOutlet:
    """One endpoint. `lookup`: resolves its name; None: as the machine does."""

    def __init__(
        self, destination: Destination, credentials: Credentials, policy: RelayPolicy, lookup: Lookup | None = None
    ) -> None:
        options = destination.options
        assert isinstance(options, HttpOptions), "the options of a destination are those of its system"
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
            return Reply(Result.AWAY, "bad_url", "the host of its URL is neither a name nor an address")
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
            return Reply(Result.AWAY, "timeout", "its name was not looked up in time")
        request = client.request(self._options.method, self._url).headers(headers).body_bytes(body)
        try:
            # The answer comes with the first piece of its body: no second way between the threads for short ones.
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
        for secret in self._secrets:  # some endpoints answer with what they were sent
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
            # The client takes a text without a certificate, and then trusts nobody more.
            if "-----BEGIN CERTIFICATE-----" not in credentials.ca:
                raise ValueError("the CA has no certificate in PEM form")
            builder = builder.add_root_certificate_pem(credentials.ca.encode())
        if credentials.cert:
            builder = builder.identity_pem(f"{credentials.key.get_secret_value()}\n{credentials.cert}".encode())
        return builder


def _url(text: str) -> Url | None:
    """None where the client's parser is stricter than the declaration."""
    try:
        return Url(text)
    except ValueError:
        return None


async def _first_bytes(response: Response) -> bytes:
    """The body as far as it came with its head. Whatever becomes of the rest, the answer is what its status says."""
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
    except ValueError:  # it is no text
        return ""


def _secrets(credentials: Credentials) -> list[str]:
    """What is struck out of answers, the longest first."""
    values = {value.removeprefix("Bearer ").removeprefix("Basic ") for _, value in fixed_headers(credentials)}
    values.add(credentials.password.get_secret_value())
    return sorted((value for value in values if len(value) >= 4), key=len, reverse=True)
