"""A replica that restarts, follows, and notices when what it holds is not what the ledger says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from duemq.cluster.topics.internal_topics import BUFFER, LEDGER
from duemq.delay.core.limits import CycleLimits
from duemq.model.errors import CorruptStore, Diverged, Fatal
from duemq.model.messages.key import make_key
from duemq.model.messages.message import CANCEL, Change, Draft
from duemq.model.messages.record import pack_record
from duemq.storage.keyspace import ROW
from tests.support.shard.shard_world import SHARD, START, World


def in_world(folder: Path, test: Callable[[World], Awaitable[None]]) -> None:
    """Run a test in a world of two nodes, the first of them master of twenty pending messages and one cancelled."""

    async def run() -> None:
        world = World(folder, CycleLimits(max_messages=3, dead_letter_topic="dlq"), {"orders": 1, "dlq": 1})
        await world.start(2)
        try:
            await world.nodes[0].promote()
            await world.produce([Draft("orders", b"%d" % number, START + number) for number in range(1, 22)])
            await world.produce([Change(CANCEL, make_key(START + 5, 4, 0), 0)])
            await world.tick(world.nodes[0])
            await test(world)
        finally:
            world.close()

    asyncio.run(run())


def test_a_killed_replica_follows_from_its_last_flush(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        master, standby = world.nodes
        await standby.follow()
        standby.store.flush()
        world.now += 10
        while await world.tick(master) == 0:
            pass
        await standby.follow()
        before, entry = standby.contents(), standby.replica.entry
        standby.kill()
        assert standby.replica.entry.number == 0
        await standby.follow()
        assert (standby.contents(), standby.replica.entry) == (before, entry)
        assert before == master.contents()

    in_world(tmp_path, test)


def test_a_replica_that_was_never_flushed_starts_from_nothing(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        node = world.nodes[0]
        node.kill()
        assert node.replica.entry.number == -1 and node.replica.recount() == 0
        await node.promote()
        world.check(node)

    in_world(tmp_path, test)


@pytest.mark.parametrize(("checksum", "pending"), [(1, 0), (0, 1)])
def test_a_ledger_that_says_otherwise_takes_the_replica_out(checksum: int, pending: int, tmp_path: Path) -> None:
    async def test(world: World) -> None:
        node = world.nodes[0]
        held = node.replica.entry
        changed = replace(held, pending=held.pending + pending, checksum=held.checksum ^ checksum)
        entry = replace(changed, number=1, answers={})
        await world.producer.append({(LEDGER, SHARD): [pack_record(None, (), entry.encode())]})
        with pytest.raises(Diverged):
            await node.follow()
        assert node.replica.entry.number == 0

    in_world(tmp_path, test)


@pytest.mark.parametrize(("topic", "words"), [(LEDGER, "stayed behind"), (BUFFER, "no longer in the log")])
def test_a_replica_that_stayed_behind_the_log_says_so(topic: str, words: str, tmp_path: Path) -> None:
    async def test(world: World) -> None:
        master, standby = world.nodes
        world.now += 3
        await world.tick(master)
        await world.producer.trim(topic, SHARD, 1)
        with pytest.raises(Fatal, match=words):
            await standby.follow()
        assert standby.replica.entry.number == -1

    in_world(tmp_path, test)


def test_a_row_that_the_store_lost_stops_the_shard_before_anything_is_sent(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        node = world.nodes[0]
        node.store.delete([ROW + make_key(START + 2, 1, 0)])
        world.now += 2
        assert node.master is not None
        with pytest.raises(Fatal):
            await node.master.tick()
        assert not world.observe()

    in_world(tmp_path, test)


def test_windows_that_do_not_add_up_are_refused_at_the_start(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        node = world.nodes[0]
        start = next(iter(node.store.windows()))
        node.store.write([], [], node.store.position, {start: 7})
        node.store.flush()
        with pytest.raises(CorruptStore, match="7 pending messages"):
            node.kill()

    in_world(tmp_path, test)
