"""Network cuts: brokers from one another, from clients, from some nodes; nodes from ZooKeeper; slow paths."""

from __future__ import annotations

import asyncio

from tests.chaos.cluster import SESSION_MS
from tests.chaos.network.network import OTHERS
from tests.chaos.topics import leaders
from tests.chaos.world import LEDGER, World
from tests.e2e.load import now_ms

_AFTER_MS = 1_000
_SLOW_S = 0.15
_CUT_S = 8.0  # longer than duemq waits for a broker
_SESSION_OVER_MS = SESSION_MS + 4_000


def _brokers(world: World) -> list[str]:
    return [f"kafka-{number}" for number in world.cluster.kafka.numbers]


def _duemq(world: World) -> list[str]:
    return [process.name for process in (*world.cluster.nodes, *world.cluster.proxies)]


async def depose_a_leader(world: World) -> None:
    """The leader of a ledger is cut off from all but the standbys; the master moves on to the next leader, and dies.

    Who takes over has to read the ledger from where the master wrote it, not from the broker it knows.
    """
    master, shards = await world.some_master()
    deposed = f"kafka-{(await leaders(world.bootstrap, LEDGER))[shards[0]]}"
    standbys = [node.name for node in world.cluster.nodes if node is not master]
    rest = [name for name in (*_brokers(world), *_duemq(world), OTHERS) if name not in (deposed, *standbys)]
    world.cluster.network.cut([deposed], rest)
    try:
        await world.deliver_again(now_ms() + _AFTER_MS, shards)
        killed = now_ms()
        await asyncio.to_thread(master.process.kill)
        await world.deliver_again(killed + _AFTER_MS, shards)
        world.note("fail-over beside a deposed leader", shards, killed)
    finally:
        world.cluster.network.heal()
    await world.start(master)
    await asyncio.to_thread(world.cluster.kafka.wait_until_whole)


async def cut_broker_from_brokers(world: World) -> None:
    """And from the controllers; clients reach it all the time."""
    broker = world.chance.choice(_brokers(world))
    world.cluster.network.cut([broker], [name for name in _brokers(world) if name != broker])
    try:
        await world.deliver_again(now_ms() + _AFTER_MS)
    finally:
        world.cluster.network.heal()
    await asyncio.to_thread(world.cluster.kafka.wait_until_whole)
    await world.deliver_again(now_ms() + _AFTER_MS)


async def cut_broker_from_duemq(world: World) -> None:
    """The other brokers still reach it, so it keeps its leaderships: their clients wait until it is back."""
    broker = world.chance.choice(_brokers(world))
    for both_ways in (True, False):
        world.cluster.network.cut([broker], _duemq(world), both_ways=both_ways)
        await asyncio.sleep(_CUT_S)
        world.cluster.network.heal()
        await world.deliver_again(now_ms() + _AFTER_MS)
    await world.until(world.all_ready, "every node to be ready again")


async def cut_master_from_brokers(world: World) -> None:
    """ZooKeeper still sees it."""
    node, shards = await world.some_master()
    world.cluster.network.cut([node.name], _brokers(world))
    try:
        await world.deliver_again(now_ms() + _AFTER_MS, shards)
    finally:
        world.cluster.network.heal()
    await world.until(world.all_ready, f"{node.name} to be ready again")


async def cut_master_from_zookeeper(world: World) -> None:
    """The brokers still accept its commits, until another node fences it."""
    node, shards = await world.some_master()
    world.cluster.network.cut([node.name], [f"zookeeper-{number}" for number in world.cluster.zookeeper.numbers])
    cut = now_ms()
    try:
        await world.deliver_again(cut + _SESSION_OVER_MS, shards)
    finally:
        world.cluster.network.heal()
    await world.until(world.all_ready, f"{node.name} to be ready again")


async def slow_down_a_broker(world: World) -> None:
    """In one direction, to everybody."""
    broker = world.chance.choice(_brokers(world))
    world.cluster.network.slow([broker], [*_brokers(world), *_duemq(world)], _SLOW_S)
    try:
        await world.deliver_again(now_ms() + _SESSION_OVER_MS)
    finally:
        world.cluster.network.heal()
    await world.deliver_again(now_ms() + _AFTER_MS)
