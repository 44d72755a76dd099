"""Redis clients: of one server, or of a cluster. Made without IO."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from duemq.model.destinations.destination import Credentials, Destination
from duemq.model.destinations.redis import RedisOptions, database

_CONNECT_S: Final = 5.0
_PORT: Final = 6379

Client = Redis | RedisCluster


def open_client(destination: Destination, options: RedisOptions, credentials: Credentials) -> Client:
    parts = urlsplit(destination.url)
    timeout_s = destination.timeout / 1000
    settings: dict[str, Any] = {
        "username": credentials.username or None,
        "password": credentials.password.get_secret_value() or None,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": min(timeout_s, _CONNECT_S),
        "socket_keepalive": True,
        # What is sent again is the relay's business: it knows what was answered, and what may be known there already.
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }  # fmt: skip
    host, port = parts.hostname or "", parts.port or _PORT
    if options.cluster:
        return RedisCluster(host, port, **settings)
    return Redis.from_pool(ConnectionPool(host=host, port=port, db=database(destination.url), **settings))
