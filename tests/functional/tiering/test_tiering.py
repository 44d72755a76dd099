"""Delay files of a shard: made by the real process, cut short at its worst moment, damaged, copied by a peer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from duemq.delay.core.limits import CycleLimits
from duemq.delay.recovery.replica_snapshot import fetch
from duemq.delay.tiering.tiering import TieringWorker
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.model.errors import CorruptStore
from duemq.model.messages.key import HIGHEST, LOWEST
from duemq.model.messages.message import CANCEL, Change, Draft
from duemq.model.timing import WINDOW_MS
from duemq.storage.delay_files.catalog import FOLDER
from duemq.storage.delay_files.sealed_file import DelayFile, write
from duemq.storage.jobs.jobs import JobFile, LoadJob
from duemq.storage.keyspace import ROW
from duemq.storage.shard.change_journal import Journal
from duemq.storage.shard.store import ShardStore
from duemq.storage.tiering.tiering_process import perform
from tests.support.shard.shard_world import SHARD, START, Killed, SimNode, World
from tests.support.shard.snapshot_world import MEMORY, Peer, Wire
from tests.support.shard.snapshot_world import SHARD as PEERS_SHARD

pytestmark = pytest.mark.anyio

WINDOW = (START // WINDOW_MS + 5) * WINDOW_MS
COUNT = 40


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[SimNode]:
    """A master with so many messages in one far window."""
    cycle_limits = CycleLimits(max_commands=100, max_messages=100, dead_letter_topic="dlq")
    world = World(tmp_path, cycle_limits, {"one": 1, "dlq": 1}, delay_files=TieringPolicy(rows=COUNT, quiet_ms=0))
    await world.start(1)
    (node,) = world.nodes
    await node.promote()
    await world.produce([Draft(topic="one", payload=b"%d" % n, due=WINDOW + n // 3) for n in range(COUNT)])
    await world.tick(node)
    yield node
    world.close()


def files_of(store: ShardStore) -> list[Path]:
    return [path for path in (store.path / FOLDER).rglob("*") if path.is_file()]


def rows_in(store: ShardStore) -> dict[bytes, bytes]:
    return dict(zip(*store.scan_all(LOWEST, HIGHEST, 1_000, 1 << 30), strict=True))


def with_a_process(node: SimNode) -> TieringWorker:
    delay_files, lock = node.world.delay_files, asyncio.Lock()
    return TieringWorker(SHARD, node.replica, lock, delay_files, lambda: node.world.now, asyncio.Lock())


async def test_a_process_seals_and_loads_a_window(node: SimNode) -> None:
    keeper, before = with_a_process(node), rows_in(node.store)
    assert await keeper.step()
    (file,) = files_of(node.store)
    assert not list(node.store.each(ROW))
    assert rows_in(node.store) == before
    about = DelayFile(file).about
    assert (about.window, about.rows, about.shard) == (WINDOW, COUNT, SHARD)

    node.world.now = WINDOW - node.world.delay_files.ahead_ms - 1
    assert not await keeper.step()
    node.world.now += 1
    assert await keeper.step()
    assert not files_of(node.store)
    assert dict(node.store.each(ROW)) == before
    node.world.now = WINDOW + 1_000
    while await node.world.tick(node) == 0:
        pass
    assert not node.world.oracle.pending


async def test_a_window_that_still_grows_is_left_alone(node: SimNode) -> None:
    node.world.delay_files = TieringPolicy(rows=COUNT, quiet_ms=10_000)
    keeper, world = with_a_process(node), node.world
    assert not await keeper.step()
    world.now += 9_999
    await world.produce([Draft(topic="one", payload=b"", due=WINDOW + n) for n in range(5)])
    await world.tick(node)
    assert not await keeper.step()
    world.now += 9_999
    assert not await keeper.step()
    world.now += 1
    assert await keeper.step()
    assert files_of(node.store)


async def test_a_window_that_fills_while_it_is_sealed_is_left_alone(node: SimNode, monkeypatch: Any) -> None:
    monkeypatch.setattr(Journal.__init__, "__defaults__", (3,))

    async def fill(node: SimNode) -> None:
        node.world.meanwhile = None
        await node.world.produce([Draft(topic="one", payload=b"", due=WINDOW + n) for n in range(5)])
        await node.world.tick(node)

    node.world.meanwhile = fill
    await node.delay_files.step()
    assert not files_of(node.store)
    node.world.check(node)
    await node.delay_files.step()
    assert files_of(node.store)
    node.world.check(node)


async def test_what_is_cancelled_while_a_load_dies_does_not_come_back(node: SimNode) -> None:
    await node.delay_files.step()
    node.world.now = WINDOW - 60_000
    (first, *_) = node.world.oracle.messages

    async def cancel(node: SimNode) -> None:
        node.world.meanwhile = None
        await node.world.produce([Change(CANCEL, first, 0)])
        await node.world.tick(node)

    node.world.meanwhile, node.tiering_fault = cancel, "ingested"
    with pytest.raises(Killed):
        await node.delay_files.step()
    node.store.flush()
    node.kill()
    assert node.store.rows([first]) == [None]
    await node.delay_files.step()
    assert node.store.rows([first]) == [None]
    assert len(list(node.store.each(ROW))) == COUNT - 1
    await node.promote()
    node.world.check(node)


@pytest.mark.parametrize("damage", ["a bit", "its end", "all"])
async def test_a_damaged_file_is_named_before_anything_of_it_is_delivered(node: SimNode, damage: str) -> None:
    keeper = with_a_process(node)
    await keeper.step()
    (file,) = files_of(node.store)
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    if damage == "all":
        file.unlink()
    else:
        file.write_bytes(content if damage == "a bit" else content[:-100])
    node.world.now = WINDOW
    with pytest.raises(CorruptStore, match=file.name):
        await keeper.step()
    assert not list(node.store.each(ROW))


async def test_a_file_that_is_whole_and_not_what_it_says_is_refused(node: SimNode, tmp_path: Path) -> None:
    await node.delay_files.step()
    (file,) = files_of(node.store)
    opened = DelayFile(file)
    forged = tmp_path / "forged.parquet"
    parts = [(keys, [row[:-1] + b"!" for row in rows]) for keys, rows in opened.parts()]
    write(forged, SHARD, WINDOW, parts)
    metadata = {b"duemq": opened.about.encode()}
    table = pq.read_table(forged).replace_schema_metadata(metadata)
    pq.write_table(table, file, row_group_size=10)
    with pytest.raises(CorruptStore, match="checksum"):
        (tmp_path / "none").touch()
        files = [JobFile(str(file), opened.about)]
        list(perform(LoadJob(files, "00" * 16, str(tmp_path / "none"), str(tmp_path / "sst"))))


def test_a_peer_copies_delay_files_too(tmp_path: Path) -> None:
    async def copied() -> None:
        world = World(
            tmp_path / "world",
            CycleLimits(dead_letter_topic="dlq"),
            {"one": 1, "dlq": 1},
            delay_files=TieringPolicy(rows=1, quiet_ms=0),
        )
        await world.start(1)
        (node,) = world.nodes
        await node.promote()
        await world.produce([Draft(topic="one", payload=b"%d" % n, due=WINDOW + n) for n in range(COUNT)])
        while await world.tick(node) == 0:
            pass
        await node.delay_files.step()
        peer = Peer(tmp_path / "peer")
        peer.store.close()
        peer.store = node.store
        into = tmp_path / "own" / "shards" / f"{PEERS_SHARD:03d}"
        await fetch(Wire(peer), PEERS_SHARD, into, lambda done, total: None)
        own = ShardStore(into, MEMORY)
        assert files_of(own)
        assert rows_in(own) == rows_in(node.store)
        own.close()
        world.close()

    asyncio.run(copied())
