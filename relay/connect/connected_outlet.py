"""The base class for outlets with one connection. All messages wait for the same attempt to connect."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, Protocol, TypeVar

from duemq.relay.base import Reply
from duemq.relay.connect.shared_connect import SharedConnect
from duemq.relay.network.resolver import Resolver
from duemq.relay.outlets import RelayPolicy


class OutletConnection(Protocol):
    """A connection that is never used again once it is lost."""

    @property
    def usable(self) -> bool: ...

    async def close(self) -> None:
        """Close the connection. Takes a few seconds at most. Idempotent."""
        ...


C = TypeVar("C", bound=OutletConnection)


class ConnectedOutlet(Generic[C]):
    """Opens a connection for the first message, and a new one after the connection is lost."""

    def __init__(self, system: str, policy: RelayPolicy) -> None:
        self._resolver = Resolver(policy.private_networks)
        self.connection: C | None = None
        self._connecting = SharedConnect(self._reconnect, system)

    async def _connected(self) -> C | Reply:
        """The connection, or the reason why there is none. A returned connection may already be lost again."""
        connection = self.connection
        if connection is not None and connection.usable:
            return connection
        return await self._connecting()

    @abstractmethod
    async def _connect(self) -> C | Reply:
        """Open a connection, or return the reason for the failure. `self.connection` is the previous connection, which
        was lost, or None."""

    async def _reconnect(self) -> C | Reply:
        connected = await self._connect()
        if not isinstance(connected, Reply):
            self.connection = connected
        return connected

    async def close(self) -> None:
        """See `Outlet`."""
        await self._connecting.cancel()
        connection, self.connection = self.connection, None
        if connection is not None:
            await connection.close()
        await self._resolver.close()
