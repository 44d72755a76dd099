"""Faults of nodes: killed, frozen, killed in the middle of a transaction, stopped in order, restarted one by one."""

from __future__ import annotations

import asyncio

from tests.chaos.cluster import SESSION_MS
from tests.chaos.world import World
from tests.e2e.load import now_ms
from tests.support.node import hooks

_AFTER_MS = 400  # a shard has recovered when a probe due this long after the fault is delivered
_FROZEN_S = SESSION_MS / 1000 + 3


async def kill_master(world: World) -> None:
    """kill -9, measure the takeover, start it again, and wait until it is level."""
    node, shards = await world.some_master()
    killed = now_ms()
    await asyncio.to_thread(node.process.kill)
    await world.deliver_again(killed + _AFTER_MS, shards)
    world.note("fail-over after kill -9", shards, killed)
    await world.start(node)


async def kill_all_nodes(world: World) -> None:
    killed = now_ms()
    await world.each(world.cluster.nodes, lambda node: node.process.kill())
    await world.each(world.cluster.nodes, lambda node: node.start())
    await world.until(world.all_ready, "all nodes to be ready again")
    await world.deliver_again(killed + _AFTER_MS)


async def freeze_master(world: World) -> None:
    """Silent for longer than its session lasts; then it wakes, and takes itself for the master still."""
    node, shards = await world.some_master()
    frozen = now_ms()
    node.process.pause()
    try:
        await asyncio.sleep(_FROZEN_S)
        await world.deliver_again(frozen + _AFTER_MS, shards)
        world.note("fail-over after SIGSTOP", shards, frozen)
    finally:
        node.process.resume()
    await world.until(world.all_ready, "the frozen node to be ready again")


async def kill_in_cycle(world: World, step: str, cycle: int) -> None:
    """A node kills itself at a step of its n-th cycle."""
    node, _ = await world.some_master()
    await asyncio.to_thread(node.process.stop)
    node.environment[hooks.DIE_AT] = f"{step}:{cycle}"
    try:
        await asyncio.to_thread(node.spawn)
        await world.until_dead(node)
    finally:
        del node.environment[hooks.DIE_AT]
    died = now_ms()
    await world.deliver_again(died + _AFTER_MS)
    await world.start(node)


async def restart_one_by_one(world: World) -> None:
    for node in world.cluster.nodes:
        masters = await world.masters()
        shards = [shard for shard, name in masters.items() if name == node.name]
        told = now_ms()
        assert await asyncio.to_thread(node.process.stop) == 0, node.process.last_words()
        await world.deliver_again(told + _AFTER_MS)
        world.note("hand-over at SIGTERM", shards, told)
        await world.start(node)


async def drain_and_resume(world: World) -> None:
    node, shards = await world.some_master()
    told = now_ms()
    await world.duemq("node", "drain", node.name)

    async def handed_over() -> bool:
        return node.name not in (await world.masters()).values()

    await world.until(handed_over, f"{node.name} to hand over")
    await world.deliver_again(now_ms() + _AFTER_MS)
    world.note("hand-over when drained", shards, told)
    await world.duemq("node", "resume", node.name)
    await world.until(world.all_ready, f"{node.name} to take part again")
