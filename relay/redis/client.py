"""Creates Redis clients for a single server or a cluster, without IO."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from redis.asyncio import Connection, ConnectionPool, Redis, RedisCluster, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from duemq.model.destinations.destination import Credentials, Destination
from duemq.model.destinations.redis import RedisOptions, database
from duemq.relay.network.resolver import Resolver
from duemq.relay.tls import client_context

_CONNECT_S: Final = 5.0
_PORT: Final = 6379

Client = Redis | RedisCluster


class _Connection(Connection):
    """Connects to an address that the resolver checked."""

    def __init__(self, *, resolver: Resolver, **settings: Any) -> None:
        super().__init__(**settings)
        self._resolver = resolver
        self._socket: socket.socket | None = None

    async def _connect(self) -> None:
        timeout_s = self.socket_connect_timeout or _CONNECT_S
        self._socket = await self._resolver.connect(str(self.host), int(self.port), timeout_s)
        await super()._connect()  # type: ignore[no-untyped-call]

    def _connection_arguments(self) -> Mapping[str, Any]:
        arguments = dict(super()._connection_arguments())
        host = arguments.pop("host")
        del arguments["port"]
        if "ssl" in arguments:
            arguments["server_hostname"] = host
        return arguments | {"sock": self._socket}


class _TlsConnection(_Connection, SSLConnection):
    """Uses our TLS context. The client would build a context from files for each connection."""

    def __init__(self, *, context: ssl.SSLContext, **settings: Any) -> None:
        super().__init__(**settings)
        self.ssl_context.context = context


def open_client(
    destination: Destination, options: RedisOptions, credentials: Credentials, resolver: Resolver
) -> Client:
    """Create a client. Raises UnusableCredentials."""
    parts = urlsplit(destination.url)
    timeout_s = destination.timeout / 1000
    settings: dict[str, Any] = {
        "username": credentials.username or None,
        "password": credentials.password.get_secret_value() or None,
        "socket_timeout": timeout_s / 2,
        "socket_connect_timeout": min(timeout_s / 4, _CONNECT_S),
        "socket_keepalive": True,
        # The client must not send again: the relay knows which messages are unanswered, and decides about retries.
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }  # fmt: skip
    host, port = parts.hostname or "", parts.port or _PORT
    connection: dict[str, Any] = {"connection_class": _Connection, "resolver": resolver}
    if parts.scheme == "rediss":
        connection |= {"connection_class": _TlsConnection, "context": client_context(credentials)}
    if options.cluster:
        return _cluster(RedisCluster(host, port, **settings), connection)
    pool = ConnectionPool(host=host, port=port, db=database(destination.url), **settings, **connection)
    return Redis.from_pool(pool)


def _cluster(cluster: RedisCluster, connection: dict[str, Any]) -> RedisCluster:
    """Set the arguments that the constructor of `RedisCluster` does not accept: a TLS context and a connection
    class."""
    cluster.connection_kwargs.update(connection)  # for nodes that it discovers later
    for node in cluster.nodes_manager.startup_nodes.values():
        node.connection_class = connection["connection_class"]
        node.connection_kwargs.update((name, value) for name, value in connection.items() if name != "connection_class")
    return cluster
