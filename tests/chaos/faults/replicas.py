"""Replicas that must not be copied, and copies without room: of one shard, while its node has sound ones."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

from duemq.dev.cluster.duemq_process import DuemqProcess
from duemq.storage.keyspace import LedgerPosition
from duemq.storage.rocksdb import Memory
from duemq.storage.shard.store import ShardStore
from tests.chaos.faults.copies import as_by_retention
from tests.chaos.world import World
from tests.e2e.load import now_ms
from tests.support.node import hooks

_AFTER_MS = 1_000
_ROOM = "1000"  # bytes: less than the smallest file of a store


async def unsound_beside_a_master(world: World) -> None:
    """A standby is stopped, because it contradicts the ledger; another one is behind. The second copies the master."""
    shard, others = await _standbys(world)
    stopped, *rest = others
    copies = [await _keep_old(world, node, shard) for node in rest[:1]]
    await _go_ahead(world)
    await world.each([stopped, *rest[:1]], lambda node: node.process.stop())
    _falsify(_folder(stopped, shard))
    await asyncio.to_thread(stopped.spawn)
    world.go_on()
    await world.until(lambda: _is_unfit(world, stopped, shard, "is stopped"), f"{stopped.name} to stop shard {shard}")
    for node, old in zip(rest, copies, strict=False):
        _set_back(node, shard, old)
        await asyncio.to_thread(node.spawn)
        await world.until(lambda node=node: _is_fit(world, node), f"{node.name} to copy shard {shard} of the master")  # type: ignore[misc]
    assert await _is_unfit(world, stopped, shard, "is stopped")
    await asyncio.to_thread(stopped.process.stop)
    shutil.rmtree(_folder(stopped, shard))  # as docs/operate/cluster.md says
    await world.start(stopped)
    await world.deliver_again(now_ms() + _AFTER_MS)


async def copy_without_room(world: World) -> None:
    """A replica is behind, and its disk has no room for a copy: its node leads its other shards, and says why."""
    shard, (node, *_) = await _standbys(world)
    old = await _keep_old(world, node, shard)
    await _go_ahead(world)
    await asyncio.to_thread(node.process.stop)
    _set_back(node, shard, old)
    room = world.folder / f"room-{now_ms()}"
    room.write_text(_ROOM)
    node.environment[hooks.ROOM] = str(room)
    try:
        await asyncio.to_thread(node.spawn)
        world.go_on()
        await world.until(
            lambda: _is_unfit(world, node, shard, "it cannot be copied: a copy takes"),
            "the node to say so",
        )
        await world.deliver_again(now_ms() + _AFTER_MS)
        (shown,) = [one for one in (await world.cluster_json())["nodes"] if one["name"] == node.name]
        assert shown["state"] == "ready" and list(shown["unfit"]) == [str(shard)], shown
        assert not list(_folder(node, shard).parent.glob("*.partial")), "a part of a copy takes its room"
    finally:
        room.unlink()
        del node.environment[hooks.ROOM]
    await world.until(world.all_ready, f"{node.name} to copy the shard now")
    await world.until(lambda: _is_fit(world, node), f"{node.name} to have all of its shards")


async def _standbys(world: World) -> tuple[int, list[DuemqProcess]]:
    """A shard, and the nodes that are not its master."""
    masters = await world.masters()
    shard = world.chance.randrange(world.shape.shards)
    return shard, [node for node in world.cluster.nodes if node.name != masters[shard]]


async def _go_ahead(world: World) -> None:
    """Let all shards get further, and drop what led there from the logs, as retention does."""
    await world.deliver_again(now_ms() + _AFTER_MS)
    await world.rest()
    await as_by_retention(world)


async def _keep_old(world: World, node: DuemqProcess, shard: int) -> Path:
    """What the node holds of the shard now, in a folder beside."""
    await asyncio.to_thread(node.process.stop)
    old = world.folder / f"old-{node.name}-{now_ms()}"
    shutil.copytree(_folder(node, shard), old)
    await world.start(node)
    return old


def _set_back(node: DuemqProcess, shard: int, old: Path) -> None:
    shutil.rmtree(_folder(node, shard))
    old.rename(_folder(node, shard))


def _falsify(path: Path) -> None:
    """Give a store another checksum than the ledger says, as if it held other messages."""
    store = ShardStore(path, Memory(16 << 20, 16 << 20))
    entry, offset = store.position.entry, store.position.ledger_offset
    store.write([], [], LedgerPosition(replace(entry, checksum=entry.checksum ^ 1), offset), {})
    store.flush()
    store.close()


def _folder(node: DuemqProcess, shard: int) -> Path:
    return node.data / "shards" / f"{shard:03d}"


async def _is_unfit(world: World, node: DuemqProcess, shard: int, why: str) -> bool:
    return why in (await _unfit(world, node)).get(str(shard), "")


async def _is_fit(world: World, node: DuemqProcess) -> bool:
    """Whether it is there, and could lead each of its shards."""
    nodes = {one["name"]: one for one in (await world.cluster_json())["nodes"]}
    return node.name in nodes and nodes[node.name]["state"] == "ready" and not nodes[node.name]["unfit"]


async def _unfit(world: World, node: DuemqProcess) -> dict[str, str]:
    nodes = {one["name"]: one for one in (await world.cluster_json())["nodes"]}
    unfit: dict[str, str] = nodes[node.name]["unfit"] if node.name in nodes else {}
    return unfit
