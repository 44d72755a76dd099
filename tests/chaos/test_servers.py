"""ZooKeeper, brokers and proxies die, and a target is deleted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.faults import servers
from tests.chaos.pace import SLOW
from tests.chaos.shape import Shape
from tests.chaos.topics import committed, delete_topic, make_topic
from tests.chaos.world import DEAD_LETTERS, World
from tests.e2e.load import now_ms

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

_THREE_ZOOKEEPERS = Shape(zookeepers=3)
_THREE_BROKERS = Shape(brokers=3)
_DELETED_BY_MS = int(10_000 * SLOW)


@pytest.mark.smoke
@pytest.mark.slow
def test_zookeeper_restarted(world: Callable[..., World]) -> None:
    world().run(servers.restart_zookeeper)


@pytest.mark.slow
def test_zookeeper_leader_killed(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        for _ in range(3):
            await servers.kill_zookeeper_leader(world)

    world(_THREE_ZOOKEEPERS).run(faults)


@pytest.mark.slow
def test_zookeeper_quorum_lost_and_back(world: Callable[..., World]) -> None:
    world(_THREE_ZOOKEEPERS).run(servers.lose_zookeeper_quorum)


@pytest.mark.slow
def test_broker_killed(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        for number in world.cluster.kafka.numbers:
            await servers.kill_broker(world, number)

    world(_THREE_BROKERS).run(faults)


@pytest.mark.slow
def test_all_brokers_restarted(world: Callable[..., World]) -> None:
    world(_THREE_BROKERS).run(servers.restart_all_brokers)


@pytest.mark.slow
def test_the_only_broker_killed(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        for _ in range(2):
            await servers.kill_the_only_broker(world)

    world().run(faults)


@pytest.mark.slow
def test_proxy_killed(world: Callable[..., World]) -> None:
    world().run(servers.kill_proxies)


@pytest.mark.slow
def test_a_target_that_is_deleted_holds_nobody_up(world: Callable[..., World]) -> None:
    """Its messages end in the dead letters, each once and with the reason; those of others do not even wait."""
    gone, count = "gone", 40

    async def faults(world: World) -> None:
        await make_topic(world.bootstrap, gone, 1)
        start = now_ms()
        messages = [
            {"topic": gone, "payload": f"gone {number}", "deliver_at": start + _DELETED_BY_MS + 50 * number}
            for number in range(count)
        ]
        ids = await world.send(messages)
        await delete_topic(world.bootstrap, gone)
        deleted = now_ms()
        assert deleted < start + _DELETED_BY_MS, "this machine is too slow: some were due before the topic was deleted"
        world.dead_letters += count
        await world.deliver_again(start + _DELETED_BY_MS + 3_000)
        world.note("pause: a target is deleted", range(world.shape.shards), deleted)

        async def all_dead() -> bool:
            dead = [letter["headers"] for letter in await committed(world.bootstrap, DEAD_LETTERS)]
            reasons = {letter["duemq-id"]: letter["duemq-reason"] for letter in dead}
            return all(reasons.get(id_) == "unknown_topic" for id_ in ids)

        await world.until(all_dead, "the messages of the deleted topic to be dead letters")

    world().run(faults)
