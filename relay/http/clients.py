"""The HTTP client for one endpoint. It connects only to addresses that were checked.

The client never resolves names itself: it gets one address for the name from the resolver. The host is parsed by the
client's own URL parser, so that resolver and client agree on the host in `http://0x7f.1` or `http://127。0。0。1`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError

from duemq.relay.network.address import ForbiddenAddress
from duemq.relay.network.resolver import Resolver
from duemq.relay.tls import UnusableCredentials


class Clients:
    """Manages the current client and its pool of connections.

    `host`: as the client's URL parser returns it. `build`: returns a builder with everything except the address.
    """

    def __init__(self, host: str, resolver: Resolver, build: Callable[[], ClientBuilder]) -> None:
        self._host: Final = host
        self._resolver, self._build = resolver, build
        self._client: Client | None = None
        self._address = ""
        self._failed = False

    def ready(self) -> Client | None:
        """The client, or None if the name must be looked up first."""
        return self._client if not self._failed and self._resolver.fresh(self._host) else None

    async def current(self) -> Client:
        """Look up the name, and return a client for one of its addresses. Raises NoAddress or UnusableCredentials."""
        try:
            addresses = await self._resolver.addresses(self._host)
        except ForbiddenAddress:
            self._client = None  # a client that connected to an earlier address must not be used, either
            raise
        client, self._failed = self._client, False
        if client is None or self._address not in addresses:
            # The replaced client is closed after its last answer.
            self._address = addresses[0]
            client = self._client = self._built(self._address)
        return client

    def connect_failed(self, client: Client) -> None:
        """Report that the client could not connect, so that another address is tried."""
        if client is self._client:
            self._resolver.failed(self._host, self._address)
            self._failed = True

    async def close(self) -> None:
        await self._resolver.close()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _built(self, address: str) -> Client:
        try:
            return self._build().resolve(self._host, address, 0).build()
        except (PyreqwestError, ValueError) as error:
            raise UnusableCredentials("the CA, certificate or key in its credentials cannot be used") from error
