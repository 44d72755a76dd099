"""Neighbours on the same Kafka: a transaction on `duemq.buffer` that stays open."""

from __future__ import annotations

import secrets
from contextlib import suppress

import aiohttp
from aiokafka import AIOKafkaProducer

from tests.chaos.pace import SLOW
from tests.chaos.world import BUFFER, World
from tests.e2e.load import now_ms

_OPEN_S = 10.0 * SLOW  # its time-out, which brokers check every 10 s
_AFTER_MS = 400


async def hold_a_transaction_open(world: World) -> None:
    """One shard waits for it, every proxy says so and whose it is, and the others deliver."""
    shard = world.chance.randrange(world.shape.shards)
    stranger = AIOKafkaProducer(
        bootstrap_servers=world.bootstrap, transactional_id=f"stranger.{secrets.token_hex(4)}",
        transaction_timeout_ms=int(_OPEN_S * 1000),
    )  # fmt: skip
    await stranger.start()
    try:
        await stranger.begin_transaction()
        began = now_ms()
        await stranger.send_and_wait(BUFFER, b"never committed", partition=shard)

        async def is_told() -> bool:
            return all([await _is_blocked(proxy.url, shard) for proxy in world.cluster.proxies])

        await world.until(is_told, f"all proxies to say that shard {shard} is blocked")
        others = [number for number in range(world.shape.shards) if number != shard]
        await world.deliver_again(now_ms() + _AFTER_MS, others)
        await world.deliver_again(now_ms() + int(_OPEN_S * 1000), [shard])  # brokers have ended it
        world.note("open transaction of a stranger", [shard], began)
        world.note("open transaction of a stranger, for other shards", others, began)
    finally:
        await stranger.stop()


async def _is_blocked(url: str, shard: int) -> bool:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5 * SLOW)) as session:
        with suppress(aiohttp.ClientError, TimeoutError):
            async with session.get(f"{url}/readyz") as answer:
                trouble = (await answer.json()).get("shards", {}).get(str(shard), {})
            return bool(trouble.get("reason") == "blocked" and trouble["producer"] >= 0)
    return False
