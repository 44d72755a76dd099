"""Faults of the machine under a node: its disk is gone, full or failing, or its clock is wrong."""

from __future__ import annotations

import asyncio
import resource
import shutil
from collections.abc import Callable

import pytest

from tests.chaos.cluster import clock_of
from tests.chaos.topics import end_offsets, forget_before
from tests.chaos.world import World
from tests.e2e.load import now_ms

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

_LOGS = ("duemq.buffer", "duemq.ledger")
_FLUSHED_MS = 8_000  # longer than nodes go without making their stores durable
_FAILING_MS = 4_000
_HOUR_MS = 3_600_000


@pytest.mark.smoke
def test_wiped_disk_is_rebuilt_from_a_snapshot(world: Callable[..., World]) -> None:
    """Of the logs only the last seconds are left, so that a peer's snapshot is the one way to come level."""

    async def faults(world: World) -> None:
        node, shards = await world.some_master()
        ends = await end_offsets(world.bootstrap, _LOGS)
        await world.deliver_again(now_ms() + _FLUSHED_MS)
        killed = now_ms()
        await asyncio.to_thread(node.process.kill)
        shutil.rmtree(node.data)
        await forget_before(world.bootstrap, ends)
        await world.deliver_again(killed, shards)
        await world.start(node)
        assert "snapshot" in node.process.log.read_text(), "it came level without a snapshot"

    world().run(faults)


@pytest.mark.slow
def test_disk_that_fails_for_a_while(world: Callable[..., World]) -> None:
    """Files of one node are not allowed to grow: every write fails, as on a full or broken disk, until that ends."""

    async def faults(world: World) -> None:
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

    world().run(faults)


@pytest.mark.slow
@pytest.mark.parametrize("step_ms", [_HOUR_MS, -_HOUR_MS], ids=["ahead", "back"])
def test_clock_of_a_master_is_stepped_by_an_hour(world: Callable[..., World], step_ms: int) -> None:
    async def faults(world: World) -> None:
        node, shards = await world.some_master()
        stepped = now_ms()
        clock_of(node).write_text(str(step_ms))
        try:
            await world.deliver_again(stepped + _FAILING_MS, shards)
            # Started anew with the wrong clock, it must not take mastership on its word.
            await asyncio.to_thread(node.process.stop)
            await asyncio.to_thread(node.spawn)
            await world.deliver_again(now_ms() + _FAILING_MS)
            assert node.name not in (await world.masters()).values(), "a node with a wrong clock is master"
        finally:
            clock_of(node).write_text("0")
        await world.until(world.all_ready, f"{node.name} to be ready again")

    world().run(faults)
