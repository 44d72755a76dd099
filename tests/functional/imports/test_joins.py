"""Small imported files of one window become few, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq.delay.core.limits import CycleLimits
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.model.errors import DamagedFile
from duemq.model.messages.key import make_key
from duemq.model.messages.message import CANCEL, Change, Draft
from duemq.storage.delay_files.imported_file import ids_of
from tests.functional.imports.import_site import WINDOW
from tests.support.shard.import_schedule import write_messages
from tests.support.shard.shard_oracle import Handed
from tests.support.shard.shard_world import SHARD, SimNode, World

pytestmark = pytest.mark.anyio

FILES = 100
POLICY = TieringPolicy(windows=0, join_ms=600_000, quiet_ms=0)


async def imported(folder: Path, policy: TieringPolicy = POLICY) -> tuple[World, SimNode]:
    """A master that has as many files of one row each."""
    world = World(folder, CycleLimits(dead_letter_topic="dlq"), {"one": 1, "dlq": 1}, delay_files=policy)
    await world.start(1)
    (node,) = world.nodes
    await node.promote()
    for number in range(FILES):
        draft = Draft("one", b"%d" % number, WINDOW + number % 7)
        await world.produce([Handed(write_messages(world.shared / f"{number}.parquet", [draft]), [draft])])
    await tick(node)
    while await node.importer.step():
        pass
    await tick(node)
    assert len(node.store.delay_files.of(WINDOW)) == FILES
    return world, node


async def tick(node: SimNode) -> None:
    while await node.world.tick(node) == 0:
        pass


async def test_files_of_a_window_are_joined_once_none_has_come_for_a_while(tmp_path: Path) -> None:
    world, node = await imported(tmp_path)
    try:
        records = list(node.store.imports.all())
        cancelled = [make_key(WINDOW + number % 7, number, 0) for number in (3, 50)]
        await world.produce([Change(CANCEL, key, 0) for key in cancelled])
        await tick(node)
        assert not await node.delay_files.step()
        world.now += POLICY.join_ms - 1
        assert not await node.delay_files.step(), "it has not rested for long enough"
        world.now += 1
        assert await node.delay_files.step()
        assert not await node.delay_files.step()
        files = node.store.delay_files.of(WINDOW)
        assert [file.about.rows for file in files] == [50, 50]
        assert node.store.delay_files.drop_count(WINDOW) == 2, "cancelled messages stay in the file"
        assert list(node.store.imports.all()) == records
        world.check(node)
        for number in (0, 3, 99):
            found = [ids_of(node.path / file.name, file.about, world.ids, number, range(1)) for file in files]
            assert [one for one in found if one] == [world.ids.issue_bytes(SHARD, WINDOW + number % 7, number, 0)]

        node.kill()
        await node.promote()
        world.check(node)
        await world.produce([Change(CANCEL, make_key(WINDOW, 7, 0), 0)])
        await tick(node)
        world.now = WINDOW + 60_000
        while world.oracle.pending:
            while node.replica.reach(world.now) < world.now:
                await node.delay_files.step()
            await tick(node)
        assert node.replica.entry.outcomes.delivered == FILES - 3
    finally:
        world.close()


async def test_a_window_with_too_many_files_is_loaded_from_fewer(tmp_path: Path) -> None:
    world, node = await imported(tmp_path, TieringPolicy(merge_files=20))
    try:
        world.now = WINDOW - 600_000
        assert await node.delay_files.step()
        assert len(node.store.delay_files.of(WINDOW)) <= 20
        world.check(node)
        assert await node.delay_files.step()
        assert not node.store.delay_files.of(WINDOW)
        world.check(node)
    finally:
        world.close()


@pytest.mark.parametrize("gone", [True, False])
async def test_a_damaged_file_is_found_by_a_join_and_no_other_is_removed(tmp_path: Path, gone: bool) -> None:
    world, node = await imported(tmp_path)
    try:
        paths = [node.path / file.name for file in node.store.delay_files.of(WINDOW)]
        assert not await node.delay_files.step()
        if gone:
            paths[40].unlink()
        else:
            raw = bytearray(paths[40].read_bytes())
            raw[-20] ^= 1
            paths[40].write_bytes(raw)
        world.now += POLICY.join_ms
        with pytest.raises(DamagedFile) as caught:
            await node.delay_files.step()
        assert caught.value.path == str(paths[40])
        assert sorted((node.path / "far").rglob("*.parquet")) == sorted(set(paths) - ({paths[40]} if gone else set()))
    finally:
        world.close()
