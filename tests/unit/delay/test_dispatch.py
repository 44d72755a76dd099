"""What becomes of due messages whose topic refuses, and of dead letters nobody takes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from duemq.bus.base import NO_LEADER, TopicState
from duemq.bus.memory import MemoryBus
from duemq.bus.partitioner import partition_of
from duemq.cluster.topics.internal_topics import BUFFER
from duemq.delay.core.limits import CycleLimits
from duemq.model.messages.message import Draft
from duemq.model.messages.record import Record, pack_record, shorten, unpack_record
from tests.support.shard.shard_world import SHARD, START, World

PACE = CycleLimits(max_attempts=3, retry_ms=(100, 200), dead_letter_topic="dlq")


class Narrow(MemoryBus):
    """Its topics take frames of up to 400 bytes."""

    def topic_state(self, topic: str) -> TopicState | None:
        found = super().topic_state(topic)
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
        node.topic_states.bus = Narrow(world.log)
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
    assert shorten(frame, len(frame)) == frame
    assert unpack_record(shorten(frame, 500)).key == b"k" * 50
    for most in (500, 200, 100):
        short = shorten(frame, most)
        assert len(short) <= most
        assert unpack_record(short).header("duemq-shortened") == b"%d" % len(frame)


class Choosy(MemoryBus):
    """Its topics are as `said`, and cannot be made."""

    said: Mapping[str, TopicState]

    def topic_state(self, topic: str) -> TopicState | None:
        return self.said.get(topic) or super().topic_state(topic)


def choosy(world: World, **said: TopicState) -> Choosy:
    """The bus from which the master takes what topics take from now on."""
    bus = Choosy(world.log)
    bus.said = said
    assert world.nodes[0].master is not None
    world.nodes[0].topic_states.bus = bus
    return bus


def test_a_compacted_topic_refuses_the_messages_without_key_and_takes_the_others(tmp_path: Path) -> None:
    async def test() -> None:
        world = await world_of(tmp_path, {"state": 1, "orders": 1, "dlq": 1})
        choosy(world, state=TopicState(1, needs_key=True))
        await world.produce_unseen([
            Draft("state", b"no key", START + 1), Draft("state", b"keyed", START + 1, b"k"),
            Draft("orders", b"good", START + 2),
        ])  # fmt: skip
        world.now += 10
        await run_until(world, lambda: bool(records(world, "orders")))
        assert [record.value for record in records(world, "state")] == [b"keyed"]
        await run_until(world, lambda: bool(records(world, "dlq")))
        (dead,) = records(world, "dlq")
        assert (dead.value, dead.header("duemq-reason")) == (b"no key", b"needs_key")
        world.close()

    asyncio.run(test())


def test_partitions_without_leader_keep_their_keys_waiting_without_an_attempt(tmp_path: Path) -> None:
    async def test() -> None:
        world = await world_of(tmp_path, {"orders": 2, "dlq": 1})
        bus = choosy(world, orders=TopicState(2, trouble={1: NO_LEADER}))
        keys = [b"k%d" % number for number in range(8)]
        there = [key for key in keys if partition_of(key, 2) == 0]
        await world.produce_unseen([Draft("orders", key, START + 1, key) for key in keys])
        await world.produce_unseen([Draft("orders", b"unkeyed", START + 1) for _ in range(3)])
        world.now += 10
        await run_until(world, lambda: bool(records(world, "orders")))
        assert [record.value for record in records(world, "orders")] == [*there, *[b"unkeyed"] * 3]
        for _ in range(10 * PACE.max_attempts):
            world.now += 1_000
            await run_until(world, lambda: True)
        assert not records(world, "dlq"), "an outage of any length costs no attempt"
        assert world.nodes[0].replica.entry.pending == len(keys) - len(there)
        bus.said = {}
        await run_until(world, lambda: world.nodes[0].replica.entry.pending == 0)
        assert len(world.log.topics["orders"][1].frames) == len(keys) - len(there)
        world.close()

    asyncio.run(test())


def test_a_cycle_waits_for_look_ups_for_a_small_part_of_the_time(tmp_path: Path) -> None:
    class Silent(Choosy):
        async def look_up_topics(self, topics: Collection[str]) -> None:
            await asyncio.Event().wait()

    async def test() -> None:
        world = await world_of(tmp_path, {"orders": 1, "dlq": 1})
        master = world.nodes[0].master
        assert master is not None
        bus = Silent(world.log)
        bus.said = {}
        topic_states = world.nodes[0].topic_states
        topic_states.bus = bus
        patience: list[float] = []
        ready = topic_states.ready

        async def noting(topics: Collection[str], now: int, waits: Sequence[int], patience_s: float) -> Any:
            patience.append(patience_s)
            return await ready(topics, now, waits, patience_s)

        topic_states.ready = noting  # type: ignore[method-assign, assignment]
        for number in range(20):
            await world.produce_unseen([Draft(f"new{number}", b"x", START), Draft("orders", b"good", START)])
            world.now += 10
            await run_until(world, lambda: True)
        assert len(records(world, "orders")) == 20
        assert sum(patience) <= 0.05, "of 200 ms"
        assert world.nodes[0].replica.entry.pending == 20
        await topic_states.close()
        world.close()

    asyncio.run(test())
