"""Adopting files with several replicas: who must have one, who gets it from whom, and what a lost disk costs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from duemq.storage.imports.records import ADOPTED, REFUSED, WANTED
from tests.functional.imports.import_site import DRAFTS, WINDOW, Others, fate, hand_over, master_and_standby, others_of
from tests.support.shard.import_schedule import write_messages
from tests.support.shard.shard_oracle import Handed
from tests.support.shard.shard_world import World

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with master_and_standby(tmp_path) as made:
        yield made


async def test_a_file_is_adopted_when_as_many_replicas_have_it_as_must(world: World) -> None:
    master, standby = world.nodes
    master.adopter._policy = replace(master.adopter._policy, copies=2)
    master.adopter._peers = others = Others({standby.name: {}})
    await hand_over(world)
    assert await master.adopter.step()
    await world.tick(master)
    await master.adopter.ask()
    await world.tick(master)
    assert fate(master) == (WANTED, "")
    assert master.adopter.why_wanted(0) == "1 of 2 replicas have it"
    await standby.follow()
    assert await standby.adopter.step()
    others.nodes = others_of(standby).nodes
    await master.adopter.ask()
    await world.tick(master)
    assert fate(master) == (ADOPTED, "")
    world.check(master)


async def test_a_replica_with_another_file_of_this_name_does_not_count(world: World) -> None:
    master = world.nodes[0]
    master.adopter._policy = replace(master.adopter._policy, copies=2)
    await hand_over(world)
    assert await master.adopter.step()
    other = others_of(master)
    other.nodes = {"other": {0: replace(other.nodes[master.name][0], checksum=1)}}
    master.adopter._peers = other
    await master.adopter.ask()
    await world.tick(master)
    assert fate(master) == (WANTED, "")


async def test_too_few_replicas_are_named_when_time_runs_out(world: World) -> None:
    node = world.nodes[0]
    node.adopter._policy = replace(node.adopter._policy, copies=2)
    await hand_over(world, bad=True)
    await node.adopter.step()
    world.now = WINDOW - 119_999
    await world.tick(node)
    state, reason = fate(node)
    assert state == REFUSED and "one by one (1 of 2 replicas have it)" in reason


async def test_the_disk_of_a_master_is_lost_after_it_adopted_a_file(world: World) -> None:
    """And the source is gone: the standby has what the master asked it for before it said that the file is adopted."""
    master, standby = world.nodes
    master.adopter._policy = replace(master.adopter._policy, copies=2)
    handed = await hand_over(world)
    await master.adopter.step()
    await standby.follow()
    await standby.adopter.step()
    master.adopter._peers = others_of(standby)
    await master.adopter.ask()
    await world.tick(master)
    assert fate(master) == (ADOPTED, "")
    os.unlink(handed.adopt.path)
    await standby.promote()
    world.check(standby)


async def test_a_replica_without_the_source_gets_the_copy_of_another_one(world: World) -> None:
    master, standby = world.nodes
    handed = await hand_over(world)
    await master.adopter.step()
    others = others_of(master)
    await world.tick(master)
    os.unlink(handed.adopt.path)
    await standby.follow(ledger_end=1)
    await standby.adopter.step()
    standby.adopter._peers = others
    half = standby.path / "far" / str(WINDOW) / "a000000000000.part"
    half.parent.mkdir(parents=True, exist_ok=True)
    half.write_bytes(others.content[:500])  # of an attempt before
    await standby.adopter.ask()
    await standby.adopter.step()
    await standby.follow()
    world.check(standby)
    assert not half.exists()


async def test_a_copy_that_arrives_damaged_is_not_taken(world: World) -> None:
    master, standby = world.nodes
    handed = await hand_over(world)
    await master.adopter.step()
    others = others_of(master)
    os.unlink(handed.adopt.path)
    await standby.follow()
    await standby.adopter.step()
    sound, others.content = others.content, others.content[:-1] + b"?"
    standby.adopter._peers = others
    await standby.adopter.ask()
    assert not await standby.adopter.step()
    assert "No such file" in standby.adopter.why_wanted(0)
    others.content = sound
    await standby.adopter.ask()
    assert await standby.adopter.step()
    assert standby.adopter.here(0).about.rows == 10


async def test_a_new_master_without_the_source_does_not_refuse_what_another_replica_has(world: World) -> None:
    first, second = world.nodes
    first.adopter._policy = replace(first.adopter._policy, copies=2)
    handed = await hand_over(world)
    await first.adopter.step()
    await second.follow()
    os.unlink(handed.adopt.path)
    await second.adopter.step()
    world.now += 600_000
    second.adopter._peers = others_of(first)
    await second.promote()
    await world.tick(second)
    assert fate(second) == (WANTED, "")
    await second.adopter.step()
    await second.adopter.ask()
    await second.adopter.step()
    await world.tick(second)
    assert fate(second) == (ADOPTED, "")
    world.check(second)


async def test_the_patience_of_a_master_begins_with_it(world: World) -> None:
    first, second = world.nodes
    adopt = write_messages(world.shared / "orders.parquet", DRAFTS)
    (world.shared / "orders.parquet").unlink()
    await world.produce([Handed(adopt, DRAFTS, gone=True)])
    await world.tick(first)
    await second.follow()
    await second.adopter.step()
    world.now += 600_000
    await second.promote()
    await world.tick(second)
    assert fate(second)[0] == WANTED
    world.now += 60_001
    await world.tick(second)
    assert fate(second)[0] == REFUSED
