"""Redis for the contract of outlets: a separate stream, alone or in a cluster, read by redis-cli."""

from __future__ import annotations

import asyncio
import json
from itertools import count
from typing import Any, Final

from duemq.model.destinations.destination import read_credentials, read_destination
from duemq.relay.redis.outlet import RedisOutlet
from tests.support.destinations.redis_nodes import RedisCluster, RedisNode
from tests.support.outlets.site import LOOPBACK, Received

_NUMBERS: Final = count()
_HEADER: Final = "header:"
_WITHIN_S: Final = 10.0


def redis_outlet(
    url: str, credentials: dict[str, str] | None = None, timeout: int = 10_000, **options: Any
) -> RedisOutlet:
    destination = read_destination({"name": "redis", "url": url, "timeout": timeout, "options": options})
    return RedisOutlet(destination, read_credentials(credentials or {}), LOOPBACK)


class RedisSite:
    name, keeps_headers, tells_repeats_apart = "redis", True, True

    def __init__(self, server: RedisNode | RedisCluster) -> None:
        self._server = server
        self._node = server.nodes[0] if isinstance(server, RedisCluster) else server
        self._stream = f"contract-{next(_NUMBERS)}"

    async def outlet(self) -> RedisOutlet:
        return redis_outlet(self._server.url, name=self._stream, cluster=isinstance(self._server, RedisCluster))

    async def received(self, count: int) -> list[Received]:
        """Answered messages are stored."""
        return await asyncio.to_thread(read_stream, self._node, self._stream)

    async def stop(self) -> None:
        nodes = self._server.nodes if isinstance(self._server, RedisCluster) else [self._server]
        for node in nodes:
            await asyncio.to_thread(node.kill)

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)


def read_stream(node: RedisNode, stream: str) -> list[Received]:
    """All entries, as redis-cli sees them, with headers that are there twice."""
    entries = json.loads(node.ask("--json", "XRANGE", stream, "-", "+"))
    return [_received([value.encode("latin-1") for value in told]) for _, told in entries]


def _received(told: list[bytes]) -> Received:
    pairs = [(name.decode(), value) for name, value in zip(told[::2], told[1::2], strict=True)]
    headers = [
        (name.partition(_HEADER)[2], None if name.startswith("null-") else value)
        for name, value in pairs
        if _HEADER in name
    ]
    fields = {name: value for name, value in pairs if _HEADER not in name}
    payload = None if fields.get("null") == b"true" else fields["payload"]
    return Received(fields["id"].decode(), fields.get("key"), headers, payload)
