"""Faults of nodes: killed, frozen, killed in the middle of a transaction, stopped in order, restarted one by one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest

from tests.chaos.cluster import SESSION_MS, settings_of
from tests.chaos.world import World
from tests.e2e.load import now_ms

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "20"))
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


@pytest.mark.smoke
def test_master_killed_twice(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        for _ in range(2):
            await kill_master(world)

    world().run(faults)


@pytest.mark.smoke
def test_frozen_master_wakes(world: Callable[..., World]) -> None:
    world().run(freeze_master)


@pytest.mark.slow
def test_master_killed_again_and_again(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        for _ in range(ROUNDS):
            await kill_master(world)

    world().run(faults)


@pytest.mark.slow
def test_frozen_masters_wake_again_and_again(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        for _ in range(max(ROUNDS // 5, 1)):
            await freeze_master(world)

    world().run(faults)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["before_commit", "in_transaction", "after_commit"])
def test_killed_in_the_middle_of_a_cycle(world: Callable[..., World], step: str) -> None:
    async def faults(world: World) -> None:
        for cycle in (1, 25, 60):
            node, _ = await world.some_master()
            await asyncio.to_thread(node.process.stop)
            with settings_of(node, testing__die_at=f"{step}:{cycle}"):
                await asyncio.to_thread(node.spawn)

                await world.until_dead(node)
            died = now_ms()
            await world.deliver_again(died + _AFTER_MS)
            await world.start(node)

    world().run(faults)


@pytest.mark.slow
def test_rolling_restart(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        for node in world.cluster.nodes:
            masters = await world.masters()
            shards = [shard for shard, name in masters.items() if name == node.name]
            told = now_ms()
            assert await asyncio.to_thread(node.process.stop) == 0, node.process.last_words()
            await world.deliver_again(told + _AFTER_MS)
            world.note("hand-over at SIGTERM", shards, told)
            await world.start(node)

    world().run(faults)


@pytest.mark.slow
def test_drained_and_resumed(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        for _ in range(3):
            node, shards = await world.some_master()
            told = now_ms()
            await world.duemq("node", "drain", node.name)

            async def handed_over(name: str = node.name) -> bool:
                return name not in (await world.masters()).values()

            await world.until(handed_over, f"{node.name} to hand over")
            await world.deliver_again(now_ms() + _AFTER_MS)
            world.note("hand-over when drained", shards, told)
            await world.duemq("node", "resume", node.name)
            await world.until(world.all_ready, f"{node.name} to take part again")

    world().run(faults)
