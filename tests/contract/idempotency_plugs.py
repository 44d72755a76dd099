"""The stores of idempotency keys, to be opened by name."""

from __future__ import annotations

import secrets
from pathlib import Path

from duemq.client.idempotency.base import Store
from duemq.client.idempotency.memory import MemoryStore
from duemq.client.idempotency.redis import RedisStore
from duemq.client.idempotency.rocks import RocksStore

PLUGS = ["memory", "rocks", "redis"]


async def opened(plug: str, folder: Path, redis_url: str = "") -> Store:
    """`folder` is for `rocks`, `redis_url` for `redis`, whose keys are those of nobody else."""
    if plug == "memory":
        return MemoryStore()
    if plug == "rocks":
        return await RocksStore.open(folder / "keys")
    return await RedisStore.open(redis_url, prefix=secrets.token_bytes(8))
