"""Replicas that return after the logs were emptied: stale, with an empty disk, or from an old backup."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from duemq.dev.cluster.duemq_process import DuemqProcess
from tests.chaos.pace import SLOW
from tests.chaos.topics import end_offsets, start_offsets
from tests.chaos.world import BUFFER, World
from tests.e2e.load import now_ms
from tests.e2e.server import run

_SCHEDULED = 20  # pending while the cluster rests, half of them cancelled meanwhile
_FAR_MS = int(45_000 * SLOW)
_AFTER_RETENTION_MS = 150_000
_AFTER_MS = 1_000
_RETAINED_S = 180.0  # a minute of retention, and until a broker gets to it
_ALONE_S = 5.0  # long enough to claim shards that nobody else is there for


Forgetting = Callable[[World], Awaitable[None]]


async def emptied_by_hand(world: World) -> None:
    """At once, by an administrator: not even the last entries of the ledgers remain.

    A leading master continues, and leaves an entry when it hands over. A shard whose master is killed before its next
    check of the ledger waits for an operator.
    """
    await world.purge_logs(last_entries=0)


async def as_by_retention(world: World) -> None:
    """At once, and as much as retention leaves: the last entries."""
    await world.purge_logs(last_entries=1)


async def by_retention(world: World) -> None:
    """By the brokers, after the minute that the shape's `kafka.retention` is."""

    async def empty() -> bool:
        return await start_offsets(world.bootstrap, [BUFFER]) == await end_offsets(world.bootstrap, [BUFFER])

    await world.until(empty, "retention to empty the buffer", _RETAINED_S)


async def one_comes_back(world: World, kinds: tuple[str, ...], forgotten: Forgetting = as_by_retention) -> None:
    """Nodes that were away while others delivered, and while the logs were emptied, come back one after the other.

    `kinds`: `stale` starts on its old folder, `empty` on none, `backup` on one restored from before.
    """
    for kind in kinds:
        node, _ = await world.some_master()
        ids = await world.schedule(_SCHEDULED, now_ms() + _FAR_MS)
        backup = await asyncio.to_thread(_back_up, node, world.folder / f"{kind}-{now_ms()}")
        away = now_ms()
        await asyncio.to_thread(node.process.stop)
        await world.cancel(ids[::2])
        await world.deliver_again(away + _AFTER_MS)
        await world.rest()
        await forgotten(world)
        if kind != "stale":
            shutil.rmtree(node.data)
        if kind == "backup":
            await asyncio.to_thread(_restore, node, backup)
        await world.start(node)
        # It is given its share of the shards now. What it delivers shows what it took for pending.
        world.go_on()
        await world.deliver_again(now_ms() + _AFTER_MS)


async def an_empty_one_comes_first(world: World, forgotten: Forgetting = as_by_retention) -> None:
    """All nodes are down and the logs are as retention leaves them; the first one that starts has lost its disk."""
    ahead_ms = _AFTER_RETENTION_MS if forgotten is by_retention else _FAR_MS
    await world.schedule(_SCHEDULED, now_ms() + ahead_ms)
    await world.rest()
    await forgotten(world)
    await world.each(world.cluster.nodes, lambda node: node.process.stop())
    empty, *others = world.chance.sample(world.cluster.nodes, len(world.cluster.nodes))
    shutil.rmtree(empty.data)
    await asyncio.to_thread(empty.spawn)

    async def is_there() -> bool:
        return [node["name"] for node in (await world.cluster_json())["nodes"]] == [empty.name]

    await world.until(is_there, f"{empty.name} to take part")
    await asyncio.sleep(_ALONE_S)
    assert not empty.is_ready(), f"{empty.name} knows nothing of its shards, and is ready to be their master"
    await world.each(others, lambda node: node.start())
    await world.until(world.all_ready, "all nodes to be ready, the empty one with a copy")
    world.go_on()
    await world.deliver_again(now_ms() + _AFTER_MS)


def _back_up(node: DuemqProcess, into: Path) -> Path:
    done = run("backup", into, "--data", node.data, "--json")
    assert done.returncode == 0, done.stderr
    (made,) = into.iterdir()
    return made


def _restore(node: DuemqProcess, backup: Path) -> None:
    done = run("restore", backup, "--data", node.data)
    assert done.returncode == 0, done.stderr
