"""Faults of the machine under a node: its disk is gone, full or failing."""

from __future__ import annotations

import asyncio
import resource
import shutil

from tests.chaos.topics import end_offsets, purge_before
from tests.chaos.world import BUFFER, LEDGER, World
from tests.e2e.load import now_ms

_FLUSHED_MS = 8_000  # longer than nodes go without making their stores durable
_FAILING_MS = 4_000


async def wipe_disk(world: World) -> None:
    """The logs reach back: it reads them from their beginning, or copies a peer."""
    node, shards = await world.some_master()
    killed = now_ms()
    await asyncio.to_thread(node.process.kill)
    shutil.rmtree(node.data)
    await world.deliver_again(killed, shards)
    await world.start(node)


async def wipe_disk_and_logs(world: World) -> None:
    """Of the logs only the last seconds are left, so that a peer's snapshot is the one way to come level."""
    node, shards = await world.some_master()
    ends = await end_offsets(world.bootstrap, (BUFFER, LEDGER))
    await world.deliver_again(now_ms() + _FLUSHED_MS)
    killed = now_ms()
    await asyncio.to_thread(node.process.kill)
    shutil.rmtree(node.data)
    await purge_before(world.bootstrap, ends)
    await world.deliver_again(killed, shards)
    await world.start(node)
    assert "snapshot" in node.process.log.read_text(), "it came level without a snapshot"


async def fail_disk(world: World) -> None:
    """Files of one node are not allowed to grow: every write fails, as on a full or broken disk, until that ends."""
    node, shards = await world.some_master()
    full = now_ms()
    unlimited = resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (1_000, unlimited[1]))
    try:
        await world.deliver_again(full + _FAILING_MS, shards)
        assert node.process.running, node.process.last_words()
    finally:
        resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, unlimited)
    await world.until(world.all_ready, f"{node.name} to be ready again")
