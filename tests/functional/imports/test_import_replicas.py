"""Importing files with several replicas: who must have one, who gets it from whom, and what a lost disk costs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from duemq.storage.shard.records import IMPORTED, PENDING, REJECTED
from tests.functional.imports.import_site import (
    DRAFTS,
    WINDOW,
    Others,
    hand_over,
    master_and_standby,
    others_of,
    outcome,
)
from tests.support.shard.import_schedule import write_messages
from tests.support.shard.shard_oracle import Handed
from tests.support.shard.shard_world import World

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with master_and_standby(tmp_path) as made:
        yield made


async def test_a_file_is_imported_when_as_many_replicas_have_it_as_must(world: World) -> None:
    master, standby = world.nodes
    master.importer.policy = replace(master.importer.policy, copies=2)
    master.importer.peers = others = Others({standby.name: {}})
    await hand_over(world)
    assert await master.importer.step()
    await world.tick(master)
    await master.importer.ask()
    await world.tick(master)
    assert outcome(master) == (PENDING, "")
    assert master.importer.why_pending(0) == "1 of 2 replicas have it"
    await standby.follow()
    assert await standby.importer.step()
    others.nodes = others_of(standby).nodes
    await master.importer.ask()
    await world.tick(master)
    assert outcome(master) == (IMPORTED, "")
    world.check(master)


async def test_a_replica_with_another_file_of_this_name_does_not_count(world: World) -> None:
    master = world.nodes[0]
    master.importer.policy = replace(master.importer.policy, copies=2)
    await hand_over(world)
    assert await master.importer.step()
    other = others_of(master)
    other.nodes = {"other": {0: replace(other.nodes[master.name][0], checksum=1)}}
    master.importer.peers = other
    await master.importer.ask()
    await world.tick(master)
    assert outcome(master) == (PENDING, "")


async def test_too_few_replicas_are_named_when_time_runs_out(world: World) -> None:
    node = world.nodes[0]
    node.importer.policy = replace(node.importer.policy, copies=2)
    await hand_over(world, bad=True)
    await node.importer.step()
    world.now = WINDOW - 119_999
    await world.tick(node)
    state, reason = outcome(node)
    assert state == REJECTED and "one by one (1 of 2 replicas have it)" in reason


async def test_the_disk_of_a_master_is_lost_after_it_imported_a_file(world: World) -> None:
    """And the source is gone: the standby has what the master asked it for before it said that the file is imported."""
    master, standby = world.nodes
    master.importer.policy = replace(master.importer.policy, copies=2)
    handed = await hand_over(world)
    await master.importer.step()
    await standby.follow()
    await standby.importer.step()
    master.importer.peers = others_of(standby)
    await master.importer.ask()
    await world.tick(master)
    assert outcome(master) == (IMPORTED, "")
    os.unlink(handed.import_command.path)
    await standby.promote()
    world.check(standby)


async def test_a_replica_without_the_source_gets_the_copy_of_another_one(world: World) -> None:
    master, standby = world.nodes
    handed = await hand_over(world)
    await master.importer.step()
    others = others_of(master)
    await world.tick(master)
    os.unlink(handed.import_command.path)
    await standby.follow(ledger_end=1)
    await standby.importer.step()
    standby.importer.peers = others
    half = standby.path / "far" / str(WINDOW) / "a000000000000.part"
    half.parent.mkdir(parents=True, exist_ok=True)
    half.write_bytes(others.content[:500])  # of an attempt before
    await standby.importer.ask()
    await standby.importer.step()
    await standby.follow()
    world.check(standby)
    assert not half.exists()


async def test_a_copy_that_arrives_damaged_is_not_taken(world: World) -> None:
    master, standby = world.nodes
    handed = await hand_over(world)
    await master.importer.step()
    others = others_of(master)
    os.unlink(handed.import_command.path)
    await standby.follow()
    await standby.importer.step()
    sound, others.content = others.content, others.content[:-1] + b"?"
    standby.importer.peers = others
    await standby.importer.ask()
    assert not await standby.importer.step()
    assert "No such file" in standby.importer.why_pending(0)
    others.content = sound
    await standby.importer.ask()
    assert await standby.importer.step()
    assert standby.importer.local_file(0).about.rows == 10


async def test_a_new_master_without_the_source_does_not_refuse_what_another_replica_has(world: World) -> None:
    first, second = world.nodes
    first.importer.policy = replace(first.importer.policy, copies=2)
    handed = await hand_over(world)
    await first.importer.step()
    await second.follow()
    os.unlink(handed.import_command.path)
    await second.importer.step()
    world.now += 600_000
    second.importer.peers = others_of(first)
    await second.promote()
    await world.tick(second)
    assert outcome(second) == (PENDING, "")
    await second.importer.step()
    await second.importer.ask()
    await second.importer.step()
    await world.tick(second)
    assert outcome(second) == (IMPORTED, "")
    world.check(second)


async def test_the_patience_of_a_master_begins_with_it(world: World) -> None:
    first, second = world.nodes
    import_command = write_messages(world.shared / "orders.parquet", DRAFTS)
    (world.shared / "orders.parquet").unlink()
    await world.produce([Handed(import_command, DRAFTS, gone=True)])
    await world.tick(first)
    await second.follow()
    await second.importer.step()
    world.now += 600_000
    await second.promote()
    await world.tick(second)
    assert outcome(second)[0] == PENDING
    world.now += 60_001
    await world.tick(second)
    assert outcome(second)[0] == REJECTED
