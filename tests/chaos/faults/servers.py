"""Faults around the nodes: ZooKeeper, brokers, proxies."""

from __future__ import annotations

import asyncio

from tests.chaos.world import World
from tests.e2e.load import now_ms

_LOAD = 500  # messages; more than the 200 deliveries that `World` wants to see, for some of them are cancelled
_AFTER_MS = 1_000
_QUORUM_LOST_S = 15


async def restart_zookeeper(world: World) -> None:
    """All of it."""
    zookeeper = world.cluster.zookeeper
    await asyncio.to_thread(zookeeper.kill)
    await asyncio.to_thread(zookeeper.start)
    await world.deliver_again(now_ms() + _AFTER_MS)


async def kill_zookeeper_leader(world: World) -> None:
    zookeeper = world.cluster.zookeeper
    leader = await asyncio.to_thread(zookeeper.wait_for_leader)
    killed = now_ms()
    await asyncio.to_thread(zookeeper.kill, leader)
    await world.deliver_again(killed + _AFTER_MS)
    world.note("pause: ZooKeeper leader killed", range(world.shape.shards), killed)
    await asyncio.to_thread(zookeeper.start, leader)


async def lose_zookeeper_quorum(world: World) -> None:
    zookeeper = world.cluster.zookeeper
    await asyncio.to_thread(zookeeper.kill, 1)
    await asyncio.to_thread(zookeeper.kill, 2)
    await asyncio.sleep(_QUORUM_LOST_S)
    back = now_ms()
    await world.each([1, 2], zookeeper.start)
    await world.deliver_again(back + _AFTER_MS)
    world.note("fail-over after ZooKeeper's quorum is back", range(world.shape.shards), back)


async def kill_broker(world: World, number: int) -> None:
    """One of three."""
    kafka = world.cluster.kafka
    killed = now_ms()
    await asyncio.to_thread(kafka.kill, number)
    await world.deliver_again(killed + _AFTER_MS)
    world.note("pause: one broker of three killed", range(world.shape.shards), killed)
    await asyncio.to_thread(kafka.start, number)
    await asyncio.to_thread(kafka.wait_until_whole)


async def restart_all_brokers(world: World) -> None:
    kafka = world.cluster.kafka
    await asyncio.to_thread(kafka.stop)
    await asyncio.to_thread(kafka.start)
    await world.deliver_again(now_ms() + _AFTER_MS)
    await world.accept_again(_LOAD)  # most of the time before, nothing was accepted


async def kill_the_only_broker(world: World) -> None:
    kafka = world.cluster.kafka
    await asyncio.to_thread(kafka.kill)
    await asyncio.to_thread(kafka.start)
    await world.deliver_again(now_ms() + _AFTER_MS)


async def kill_proxies(world: World) -> None:
    """One after the other."""
    for proxy in world.cluster.proxies:
        killed = now_ms()
        await asyncio.to_thread(proxy.process.kill)
        await world.deliver_again(killed + _AFTER_MS)
        await world.start(proxy)
