"""Topics of duemq's own that are deleted or lose their leader: only what needs them notices."""

from __future__ import annotations

import asyncio

from duemq.cluster.topics.internal_topics import ADMIN, JOBS, TRAIL
from tests.chaos.topics import delete_topic, describe, move_topic
from tests.chaos.world import World
from tests.e2e.load import now_ms

ADMINISTRATIVE = (ADMIN, JOBS, TRAIL)
_AFTER_MS = 8_000  # longer than duemq waits before it calls a partition unreadable
_DEAD = 3  # the broker that is down


async def delete(world: World, topic: str) -> None:
    """Deliveries go on, and duemq makes the topic again."""
    await delete_topic(world.bootstrap, topic)
    await world.deliver_again(now_ms() + _AFTER_MS)
    await world.accept_again(50)

    async def is_there() -> bool:
        (described,) = await describe(world.bootstrap, [topic])
        return bool(described["error_code"] == 0)

    await world.until(is_there, f"{topic} to be made again")


async def lose_the_leaders(world: World) -> None:
    """All administrative topics, at the same time. Then each is deleted, so that it has all its replicas again."""
    for topic in ADMINISTRATIVE:
        await move_topic(world.bootstrap, topic, _DEAD)
    await asyncio.to_thread(world.cluster.kafka.kill, _DEAD)
    try:
        await world.deliver_again(now_ms() + _AFTER_MS)
        await world.accept_again(50)
    finally:
        await asyncio.to_thread(world.cluster.kafka.start, _DEAD)
        await asyncio.to_thread(world.cluster.kafka.wait_until_whole)
    for topic in ADMINISTRATIVE:
        await delete(world, topic)
