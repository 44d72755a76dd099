"""The HTTP client of one endpoint, which connects to addresses that were checked and to no others.

The client is never let look a name up: the name stands for one address of the resolver. The host is taken from the
client's own parser of URLs, so that both see the same one in `http://0x7f.1` or `http://127。0。0。1`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError

from duemq.relay.network.addresses import ForbiddenAddress
from duemq.relay.network.resolver import Resolver
from duemq.relay.tls import UnusableCredentials


class Clients:
    """One client at a time, with its pool of connections.

    `host`: as the client's parser of URLs has it. `build`: gives a builder with everything but the address.
    """

    def __init__(self, host: str, resolver: Resolver, build: Callable[[], ClientBuilder]) -> None:
        self._host: Final = host
        self._resolver, self._build = resolver, build
        self._client: Client | None = None
        self._address = ""
        self._failed = False

    def ready(self) -> Client | None:
        """The client, if its address need not be looked up again."""
        return self._client if not self._failed and self._resolver.fresh(self._host) else None

    async def current(self) -> Client:
        """The client, looked up unless it is `ready`. Raises NoAddress, UnusableCredentials."""
        try:
            addresses = await self._resolver.addresses(self._host)
        except ForbiddenAddress:
            self._client = None  # also one that was connected before the name moved
            raise
        client, self._failed = self._client, False
        if client is None or self._address not in addresses:
            # The client that is replaced ends by itself after its last answer.
            self._address = addresses[0]
            client = self._client = self._built(self._address)
        return client

    def connect_failed(self, client: Client) -> None:
        """The client could not connect: another address is tried."""
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
            raise UnusableCredentials("the CA, certificate or key of its credentials cannot be used") from error
