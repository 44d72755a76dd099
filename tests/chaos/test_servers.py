"""Faults around the nodes: ZooKeeper, brokers, proxies, and a target that is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.chaos.shape import Shape
from tests.chaos.topics import committed, delete_topic, make_topic
from tests.chaos.world import DEAD_LETTERS, World
from tests.e2e.load import now_ms

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

_LOAD = 500  # messages; more than the 200 deliveries that `World` wants to see, for some of them are cancelled
_AFTER_MS = 1_000
_QUORUM_LOST_S = 15
_THREE_ZOOKEEPERS = Shape(zookeepers=3)
_THREE_BROKERS = Shape(brokers=3)


@pytest.mark.smoke
def test_zookeeper_restarted(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        zookeeper = world.cluster.zookeeper
        await asyncio.to_thread(zookeeper.kill)
        await asyncio.to_thread(zookeeper.start)
        await world.deliver_again(now_ms() + _AFTER_MS)

    world().run(faults)


@pytest.mark.slow
def test_zookeeper_leader_killed(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        zookeeper = world.cluster.zookeeper
        for _ in range(3):
            leader = await asyncio.to_thread(zookeeper.wait_for_leader)
            killed = now_ms()
            await asyncio.to_thread(zookeeper.kill, leader)
            await world.deliver_again(killed + _AFTER_MS)
            world.note("pause: ZooKeeper leader killed", range(world.shape.shards), killed)
            await asyncio.to_thread(zookeeper.start, leader)

    world(_THREE_ZOOKEEPERS).run(faults)


@pytest.mark.slow
def test_zookeeper_quorum_lost_and_back(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        zookeeper = world.cluster.zookeeper
        await asyncio.to_thread(zookeeper.kill, 1)
        await asyncio.to_thread(zookeeper.kill, 2)
        await asyncio.sleep(_QUORUM_LOST_S)
        back = now_ms()
        await world.each([1, 2], zookeeper.start)
        await world.deliver_again(back + _AFTER_MS)
        world.note("fail-over after ZooKeeper's quorum is back", range(world.shape.shards), back)

    world(_THREE_ZOOKEEPERS).run(faults)


@pytest.mark.slow
def test_broker_killed(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        kafka = world.cluster.kafka
        for number in kafka.numbers:
            killed = now_ms()
            await asyncio.to_thread(kafka.kill, number)
            await world.deliver_again(killed + _AFTER_MS)
            world.note("pause: one broker of three killed", range(world.shape.shards), killed)
            await asyncio.to_thread(kafka.start, number)
            await asyncio.to_thread(kafka.wait_until_whole)

    world(_THREE_BROKERS).run(faults)


@pytest.mark.slow
def test_all_brokers_restarted(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        kafka = world.cluster.kafka
        await asyncio.to_thread(kafka.stop)
        await asyncio.to_thread(kafka.start)
        await world.deliver_again(now_ms() + _AFTER_MS)
        await world.accept_again(_LOAD)  # most of the time before, nothing was accepted

    world(_THREE_BROKERS).run(faults)


@pytest.mark.slow
def test_the_only_broker_killed(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        kafka = world.cluster.kafka
        for _ in range(2):
            await asyncio.to_thread(kafka.kill)
            await asyncio.to_thread(kafka.start)
            await world.deliver_again(now_ms() + _AFTER_MS)

    world().run(faults)


@pytest.mark.slow
def test_proxy_killed(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        for proxy in world.cluster.proxies:
            killed = now_ms()
            await asyncio.to_thread(proxy.process.kill)
            await world.deliver_again(killed + _AFTER_MS)
            await world.start(proxy)

    world().run(faults)


@pytest.mark.slow
def test_a_target_that_is_deleted_holds_nobody_up(world: Callable[..., World]) -> None:
    """Its messages end in the dead letters, each once and with the reason; those of others do not even wait."""
    gone, count = "gone", 40

    async def faults(world: World) -> None:
        await make_topic(world.bootstrap, gone, 1)
        start = now_ms()
        messages = [
            {"topic": gone, "payload": f"gone {number}", "deliver_at": start + 3_000 + 50 * number}
            for number in range(count)
        ]
        ids = await world.send(messages)
        await delete_topic(world.bootstrap, gone)
        deleted = now_ms()
        world.dead_letters += count
        await world.deliver_again(start + 6_000)
        world.note("pause: a target is deleted", range(world.shape.shards), deleted)

        async def all_dead() -> bool:
            dead = [letter["headers"] for letter in await committed(world.bootstrap, DEAD_LETTERS)]
            reasons = {letter["duemq-id"]: letter["duemq-reason"] for letter in dead}
            return all(reasons.get(id_) == "unknown_topic" for id_ in ids)

        await world.until(all_dead, "the messages of the deleted topic to be dead letters")

    world().run(faults)
