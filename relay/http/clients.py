"""The HTTP client of one endpoint, which connects to addresses that were checked and to no others.

The client is never let look a name up: the name stands for one address that we looked up and checked, so an answer
that changes between the look-up and the connect (DNS rebinding) changes nothing. The host is taken from the client's
own parser of URLs, so that both see the same one in `http://0x7f.1` or `http://127。0。0。1`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Final

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError

from duemq.relay.http.addresses import ForbiddenAddress, Network, check_address
from duemq.relay.tls import UnusableCredentials

LOOKUP_S: Final = 15.0
"""How long the answer of a look-up is good. Then the name is looked up again, while the old answer still serves."""
_STALE_S: Final = 60.0
_AGAIN_S: Final = 1.0  # an endpoint that refuses at once must not make a look-up of each message

Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""From a host name to its addresses, at least one. Raises OSError."""


class LookupFailed(Exception):
    """The name has no address; the message says what DNS said."""


class Clients:
    """One client at a time, with its pool of connections.

    `host`: as the client's parser of URLs has it. `build`: gives a builder with everything but the address.
    """

    def __init__(
        self, host: str, allowed: Sequence[Network], build: Callable[[], ClientBuilder], lookup: Lookup | None = None
    ) -> None:
        self._host: Final = host
        self._allowed, self._build = allowed, build
        self._threads: ThreadPoolExecutor | None = None
        self._lookup: Final = lookup or self._look_up
        self._literal: Final = _literal(self._host)
        self._client: Client | None = None
        self._address = ""
        self._failed: set[str] = set()
        self._looked_up = self._good_until = 0.0
        self._refresh: asyncio.Task[Client] | None = None

    def ready(self) -> Client | None:
        """The client, if its address need not be looked up again."""
        return self._client if asyncio.get_running_loop().time() < self._good_until else None

    async def current(self) -> Client:
        """The client, looked up where it is not `ready`. Raises ForbiddenAddress, LookupFailed, UnusableCredentials."""
        now = asyncio.get_running_loop().time()
        if self._refresh is None or self._refresh.done():
            self._refresh = asyncio.create_task(self._refreshed(), name=f"look up {self._host}")
            # Its error is for those who wait for it; while an old answer serves there are none.
            self._refresh.add_done_callback(lambda task: task.cancelled() or task.exception())
        if self._client is not None and now < self._good_until + _STALE_S:
            return self._client
        return await asyncio.shield(self._refresh)

    def connect_failed(self, client: Client) -> None:
        """The client could not connect: the name is looked up soon, and another of its addresses tried."""
        if client is self._client:
            self._failed.add(self._address)
            self._good_until = min(self._good_until, self._looked_up + _AGAIN_S)

    async def close(self) -> None:
        if self._refresh is not None:
            self._refresh.cancel()
            await asyncio.wait([self._refresh])
        # Connections end with the last reference to their client, and the task has one, too.
        client, self._client, self._refresh = self._client, None, None
        if client is not None:
            await client.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def _refreshed(self) -> Client:
        try:
            addresses = [self._literal] if self._literal else list(await self._lookup(self._host))
        except (OSError, UnicodeError) as error:
            raise LookupFailed(f"{self._host}: {error}") from error
        try:
            good = self._checked(addresses)
        except ForbiddenAddress:
            self._client = None  # also one that was connected before the name moved
            raise
        if self._failed.issuperset(good):
            self._failed.clear()  # each was tried: from the first again
        client = self._client
        if client is None or self._address not in good or self._address in self._failed:
            # The client that is replaced ends by itself after its last answer.
            self._address = next(address for address in good if address not in self._failed)
            client = self._client = self._built(self._address)
        self._looked_up = asyncio.get_running_loop().time()
        self._good_until = self._looked_up + LOOKUP_S
        return client

    def _built(self, address: str) -> Client:
        try:
            return self._build().resolve(self._host, address, 0).build()
        except (PyreqwestError, ValueError) as error:
            raise UnusableCredentials("the CA, certificate or key of its credentials cannot be used") from error

    def _checked(self, addresses: Sequence[str]) -> list[str]:
        """Those that are allowed. Raises ForbiddenAddress where none is."""
        good, refused = [], None
        for address in addresses:
            try:
                check_address(address, self._allowed)
                good.append(address)
            except ForbiddenAddress as error:
                refused = refused or error
        if not good:
            raise refused or LookupFailed(f"{self._host} has no address")
        return good

    async def _look_up(self, host: str) -> Sequence[str]:
        # A thread of its own: a name server that does not answer holds up no other endpoint.
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, f"look up {host}")
        infos = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(info[4][0]) for info in infos))


def _literal(host: str) -> str:
    """The address that the host is; empty where it is a name."""
    text = host[1:-1] if host.startswith("[") else host
    try:
        ip_address(text)
    except ValueError:
        return ""
    return text
