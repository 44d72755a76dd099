"""Whose replica a node copies, and when: a copy is compared before it replaces anything."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from duemq.bus.memory import MemoryLog
from duemq.cluster.topics.internal_topics import LEDGER
from duemq.delay.core.disk_watermarks import Watermarks
from duemq.delay.replica.replica import Replica
from duemq.delay.shard.shard import Shard
from duemq.model.disk_use import DiskUse
from duemq.model.errors import Behind, Diverged, Unavailable
from duemq.model.messages.message import Draft
from duemq.proxy.gateway.base import Receipt
from tests.support.node.copying_nodes import SHARDS, Nodes
from tests.support.node.memory_nodes import MemoryNode

pytestmark = pytest.mark.anyio

LATER = time.time_ns() // 1_000_000 + 10**7


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path, MemoryLog())


async def lead_all(node: MemoryNode) -> None:
    node.election.give(*range(SHARDS))
    await node.until(lambda: all(shard.leading for shard in node.node.shards.values()), "the node to be master of all")


async def make_entries(node: MemoryNode, shard: int, count: int) -> None:
    """Let the master of a shard write this many entries, each with a message that is due later."""
    for _ in range(count):
        before = node.node.shards[shard].replica.entry.number
        while node.node.shards[shard].replica.entry.number == before:
            (sent,) = await node.gateway.send([Draft("orders", b"x", LATER)])
            assert isinstance(sent, Receipt)
            await asyncio.sleep(0)


async def test_of_replicas_that_all_missed_entries_none_is_overwritten(nodes: Nodes) -> None:
    """An operator chooses the furthest one: what it did is on no other disk."""
    async with nodes.node("a") as a:
        async with nodes.node("b"):
            await a.node.bus.create_topic("orders", 1)
            await lead_all(a)
            await make_entries(a, 0, 3)
            await nodes.nodes["b"].until(lambda: len(set(nodes.entries(0).values())) == 1, "b to follow")
        await make_entries(a, 0, 6)
    shutil.copytree(nodes.folder / "a", nodes.folder / "c")
    async with nodes.node("c") as c:  # another node does more, and its disk is lost
        await lead_all(c)
        await make_entries(c, 0, 5)
        last = c.node.shards[0].store.position.ledger_offset - 1
        await c.node.bus.trim(LEDGER, 0, last)
    del nodes.nodes["c"]
    nodes.copies.clear()
    async with nodes.node("b") as b:
        await b.until(lambda: 0 in b.node.health.unfit, "b to find that it missed something")
        async with nodes.node("a") as a:
            found = nodes.entries(0)
            assert found["a"] > found["b"] >= 2
            for node in (a, b):
                await node.until(lambda node=node: 0 in node.node.health.unfit, "the node to notice the gap")  # type: ignore[misc]
                await node.until(lambda node=node: 1 in node.node.health.caught_up, "its other shard")  # type: ignore[misc]
            await asyncio.wait([a.running, b.running], timeout=1.5)
            assert nodes.entries(0) == found and not [copy for copy in nodes.copies if copy[2] == 0]
            a.node.recover(0)
            a.election.give(0)
            await a.until(lambda: a.node.shards[0].leading, "the furthest replica to be the truth")
            await b.until(lambda: 0 in b.node.health.caught_up, "b to copy it")
            assert nodes.entries(0)["b"] == nodes.entries(0)["a"] > found["a"]


@pytest.fixture
def diverging(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """Shard 0 of the nodes in these folders differs from its ledger, as with a damaged store."""
    folders: set[Path] = set()
    follow = Replica._follow_entry

    async def follow_or_differ(self: Replica, *arguments: object) -> None:
        if self.shard == 0 and self.store.path.parent.parent in folders and self.entry.number >= 1:
            raise Diverged("shard 0: it holds 1 message, the ledger says 2")
        await follow(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Replica, "_follow_entry", follow_or_differ)
    return folders


async def test_a_replica_that_was_stopped_is_neither_copied_nor_backed_up(nodes: Nodes, diverging: set[Path]) -> None:
    diverging.add(nodes.folder / "b")
    async with nodes.node("a") as a, nodes.node("b") as b:
        await a.node.bus.create_topic("orders", 1)
        await lead_all(a)
        await make_entries(a, 0, 4)
        await b.until(lambda: b.node.shards[0].stopped, "b to stop a replica that contradicts the ledger")
        await b.until(lambda: b.election.health and 0 in b.election.health.unfit, "b to tell it")
        await b.until(lambda: 1 in b.node.health.caught_up, "its other shard")
        assert b.node.why_not_ready is None, "it is ready all the same"
        with pytest.raises(Unavailable, match="cannot be copied"):
            await b.node.checkpoint(0, nodes.folder / "none")
        await b.node.checkpoint(1, nodes.folder / "some")
        async with nodes.node("c") as c:
            await c.ready()
            assert nodes.entries(0)["c"] == nodes.entries(0)["a"]
        assert ("c", "a", 0) in nodes.copies and ("c", "b", 0) not in nodes.copies


async def test_a_copy_without_room_or_help_stays_in_its_shard(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node leads its other shards, and says why it cannot lead this one."""
    disk, behind = DiskUse(60 << 20, 40 << 20), False
    follow = Replica.follow

    async def follow_or_lag(self: Replica, *arguments: object) -> int:
        if behind and self.shard == 0 and self.store.path.parent.parent.name == "b":
            raise Behind("shard 0: the ledger goes on at entry 900, this replica is at 3")
        return await follow(self, *arguments)  # type: ignore[arg-type]

    async def count(self: Shard, seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0.01)

    pauses: list[float] = []
    monkeypatch.setattr(Replica, "follow", follow_or_lag)
    monkeypatch.setattr(Shard, "_pause", count)
    marks = Watermarks(101, 101, 90, 0)
    async with nodes.node("a") as a, nodes.node("b", marks=marks, measure=lambda path: disk) as b:
        await a.node.bus.create_topic("orders", 1)
        await lead_all(a)
        await make_entries(a, 0, 3)
        await b.ready()
        a.election.give(0)
        b.election.give(1)
        await b.until(lambda: b.node.shards[1].leading, "b to lead its other shard")
        await make_entries(a, 0, 3)
        disk, behind = DiskUse(90 << 20, 10 << 20), True
        b.node.shards[0].wake()
        await b.until(lambda: len(pauses) > 5, "b to look for a peer, again and again")
        assert pauses[:6] == [1, 2, 5, 10, 10, 10], "with growing pauses"
        assert "a copy takes" in b.node.health.unfit[0] and "storage.refuse_percent" in b.node.health.unfit[0]
        assert b.node.shards[1].leading and b.node.why_not_ready is None
        assert not list(nodes.folder.glob("b/shards/*.partial"))
        disk = DiskUse(10 << 20, 90 << 20)
        pauses.clear()
        copies = len(nodes.copies)
        while 300 not in pauses:  # a copy that did not help is made again later and later
            await make_entries(a, 0, 1)
        assert len(nodes.copies) - copies >= 4 and b.node.shards[1].leading
        behind = False
        await b.until(lambda: 0 in b.node.health.caught_up, "b to follow again")


async def test_parts_of_a_copy_are_removed_once_the_replica_has_caught_up_without_it(nodes: Nodes) -> None:
    async with nodes.node("a") as a:
        await a.ready()
        parts = nodes.folder / "a" / "shards" / "000.partial" / "parts"
        parts.mkdir(parents=True)
        (parts / ("0" * 64)).write_bytes(bytes(1_000))
        a.node.shards[0].behind = 1  # the next attempt may need them
        await a.node.clean()
        assert parts.exists()
        a.node.shards[0].behind = 0
        await a.node.clean()
        assert not parts.parent.exists()
