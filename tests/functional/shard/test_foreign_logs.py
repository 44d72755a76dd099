"""A master that meets what another cluster wrote to its logs delivers nothing more; one that starts there, nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.topics.internal_topics import BUFFER, LEDGER
from duemq.model.log.ledger import Barrier, Entry, read_ledger
from duemq.model.messages.message import Draft
from duemq.model.messages.record import pack_record, unpack_record
from tests.support.node.memory_nodes import IDENTITY, ManualClock, MemoryNode, values

pytestmark = pytest.mark.anyio


def ledger(log: MemoryLog) -> list[Entry | Barrier]:
    return [read_ledger(unpack_record(one.frame).payload) for one in log.topics[LEDGER][0].frames]


async def write(log: MemoryLog, what: Entry | Barrier) -> None:
    """As a master of another name does, which is not fenced."""
    committer = await MemoryBus(log).committer("of-another-cluster")
    await committer.commit({(LEDGER, 0): [pack_record(None, (), what.encode())]})


async def unfit(node: MemoryNode) -> None:
    await node.until(lambda: 0 in node.node.health.unfit, "the shard to be unfit")


class World:
    def __init__(self, tmp_path: Path) -> None:
        self.clock = ManualClock()
        self.log, self.path = MemoryLog(self.clock), tmp_path

    def node(self, name: str, **options: Any) -> MemoryNode:
        return MemoryNode(self.log, self.path / name, clock=self.clock, **options)

    async def send(self, node: MemoryNode, *texts: str) -> None:
        await node.gateway.send([Draft("orders", text.encode(), self.clock() + 1_000) for text in texts])

    async def deliver(self, node: MemoryNode, *texts: str) -> None:
        await self.send(node, *texts)
        self.clock.now += 1_000
        await node.until(lambda: values(self.log, "orders")[-len(texts) :] == list(texts), "the delivery")


async def test_every_barrier_says_whose_it_is_and_the_first_record_of_a_ledger_is_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    for name in ("a", "b"):
        async with world.node(name) as node:
            await node.lead()
            await world.deliver(node, name)
    barriers = [entry for entry in ledger(world.log) if isinstance(entry, Barrier)]
    assert ledger(world.log)[0] == barriers[0] and len(barriers) == 2
    assert {barrier.cluster for barrier in barriers} == {IDENTITY.cluster}


@pytest.mark.parametrize("cluster", ["", "other"])
async def test_a_master_stops_with_the_cycle_after_which_it_meets_another(tmp_path: Path, cluster: str) -> None:
    """`cluster`: of the other one, which an older version does not say."""
    world = World(tmp_path)
    async with world.node("a") as a:
        await a.lead()
        await world.deliver(a, "one")
        await world.send(a, "two", "three")
        before = a.shard.replica.entry
        await write(world.log, Barrier(before.number, world.clock(), cluster))
        await write(world.log, replace(before, number=before.number + 1))
        world.clock.now += 1_000
        await a.until(lambda: not a.shard.leading, "the master to give up")
        await a.until(lambda: 0 in a.node.health.unfit, "the shard to be unfit")
        assert "two clusters have written to its ledger" in a.node.health.unfit[0]
        delivered, entries = values(world.log, "orders"), len(ledger(world.log))
        await MemoryBus(world.log).append({(BUFFER, 0): [b"wakes it"]})
        await a.until(lambda: a.shard.pulse, "some more attempts")
        for _ in range(3):
            a.shard.wake()
            world.clock.now += 60_000
            await a.until(lambda: 0 in a.node.health.unfit, "the shard to stay unfit")
        assert values(world.log, "orders") == delivered and len(ledger(world.log)) == entries
        a.node.recover(0)
        await a.until(lambda: a.shard.leading, "the operator's replica to lead")
        await world.deliver(a, "four")
    assert values(world.log, "orders") == ["one", "two", "three", "four"]


async def test_a_replica_that_starts_on_the_logs_of_another_cluster_writes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.node("a") as a:
        await a.lead()
    await write(world.log, Barrier(-1, world.clock(), "other"))
    count = len(ledger(world.log))
    for name in ("a", "b"):
        async with world.node(name) as node:
            node.election.give(0)
            await unfit(node)
            assert "a master of cluster other began" in node.node.health.unfit[0]
            assert len(ledger(world.log)) == count and not node.shard.leading


async def test_a_buffer_that_was_made_again_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.node("a") as a:
        await a.lead()
        await world.deliver(a, "one", "two")
    partition = world.log.topics[BUFFER][0]
    partition.start, partition.frames = 0, []
    async with world.node("a") as a:
        a.election.give(0)
        await unfit(a)
        assert "duemq.buffer ends before that" in a.node.health.unfit[0]
