"""Nodes that were away while the logs were emptied come back: none is given a shard before it knows all of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.faults import copies, replicas
from tests.chaos.shape import Shape
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

_ONE_MINUTE = Shape(retention="1m")


def test_stale_replica_after_retention_left_the_last_entries(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        await copies.one_comes_back(world, ("stale",))

    world().run(faults)


def test_a_stopped_and_a_stale_replica_beside_a_sound_master(world: Callable[..., World]) -> None:
    world(Shape(nodes=3)).run(replicas.unsound_beside_a_master)


def test_a_copy_on_a_disk_without_room(world: Callable[..., World]) -> None:
    world().run(replicas.copy_without_room)


@pytest.mark.slow
def test_stale_replica_after_somebody_emptied_the_logs(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        await copies.one_comes_back(world, ("stale",), copies.emptied_by_hand)

    world().run(faults)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stale", "empty", "backup"])
def test_shards_rest_for_longer_than_retention(world: Callable[..., World], kind: str) -> None:
    async def faults(world: World) -> None:
        await copies.one_comes_back(world, (kind,), copies.by_retention)

    world(_ONE_MINUTE).run(faults)


@pytest.mark.slow
def test_all_nodes_start_after_a_long_rest_and_one_has_lost_its_disk(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        await copies.an_empty_one_comes_first(world, copies.by_retention)

    world(_ONE_MINUTE).run(faults)
