"""What becomes of due messages whose target refuses, and of dead letters nobody takes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path

from duemq.bus.base import Target
from duemq.bus.memory import MemoryBus
from duemq.delay.pace import Pace
from duemq.delay.topics import BUFFER
from duemq.model.message import Draft
from duemq.model.record import Record, pack_record, shortened, unpack_record
from tests.shard_world import SHARD, START, World

PACE = Pace(max_attempts=3, retry_ms=(100, 200), dead_letter_topic="dlq")


class Narrow(MemoryBus):
    """Its topics take frames of up to 400 bytes."""

    def target(self, topic: str) -> Target | None:
        found = super().target(topic)
        return None if found is None else dataclasses.replace(found, max_frame_bytes=400)


async def world_of(folder: Path, topics: dict[str, int]) -> World:
    world = World(folder, PACE, topics, now=START)
    await world.start(1)
    await world.nodes[0].promote()
    return world


def records(world: World, topic: str) -> list[Record]:
    return [unpack_record(stored.frame) for stored in world.log.topics[topic][0].frames]


async def run_until(world: World, done: Callable[[], bool]) -> None:
    master = world.nodes[0].master
    assert master is not None
    for _ in range(50):
        await master.tick()
        if done():
            return
        world.now += 100
    raise AssertionError("this takes too long")


def test_a_message_too_large_for_its_target_is_tried_and_buried_without_delaying_others(tmp_path: Path) -> None:
    async def test() -> None:
        world = await world_of(tmp_path, {"orders": 1, "dlq": 1})
        node = world.nodes[0]
        assert node.master is not None
        node.master._dispatch._targets._bus = Narrow(world.log)
        await world.produce([Draft("orders", b"x" * 500, START + 1), Draft("orders", b"small", START + 2)])
        world.now += 10
        await run_until(world, lambda: bool(records(world, "orders")))
        assert [record.value for record in records(world, "orders")] == [b"small"]
        await run_until(world, lambda: bool(records(world, "dlq")))
        (dead,) = records(world, "dlq")
        assert dead.header("duemq-reason") == b"too_large" and dead.header("duemq-shortened") is not None
        assert (dead.value, node.replica.entry.pending) == (b"", 0)
        world.close()

    asyncio.run(test())


def test_without_a_dead_letter_topic_messages_wait_and_garbage_does_not_stop_the_shard(tmp_path: Path) -> None:
    async def test() -> None:
        world = await world_of(tmp_path, {"orders": 1})
        entry = world.nodes[0].replica
        await world.producer.append({(BUFFER, SHARD): [pack_record(None, (), b"garbage")]})
        await world.produce_unseen([Draft("nowhere", b"lost?", START + 1), Draft("orders", b"good", START + 2)])
        world.now += 10
        await run_until(world, lambda: bool(records(world, "orders")))
        for _ in range(20):
            world.now += 200
            await run_until(world, lambda: True)
        assert entry.entry.pending == 1
        await world.producer.create_topic("dlq", 1)
        await run_until(world, lambda: bool(records(world, "dlq")))
        assert records(world, "dlq")[0].header("duemq-reason") == b"unknown_topic"
        assert entry.entry.pending == 0
        world.close()

    asyncio.run(test())


def test_a_shortened_record_says_so_and_fits() -> None:
    frame = pack_record(b"k" * 50, [("a", b"1" * 20), ("b", b"2" * 300)], b"v" * 900)
    assert shortened(frame, len(frame)) == frame
    assert unpack_record(shortened(frame, 500)).key == b"k" * 50
    for most in (500, 200, 100):
        short = shortened(frame, most)
        assert len(short) <= most
        assert unpack_record(short).header("duemq-shortened") == b"%d" % len(frame)
