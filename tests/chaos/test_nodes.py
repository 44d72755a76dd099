"""Nodes are killed, frozen, killed in the middle of a transaction, stopped in order, and restarted one by one."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.chaos.faults import nodes
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "20"))


@pytest.mark.smoke
@pytest.mark.slow
def test_master_killed_twice(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        for _ in range(2):
            await nodes.kill_master(world)

    world().run(faults)


@pytest.mark.smoke
@pytest.mark.slow
def test_frozen_master_wakes(world: Callable[..., World]) -> None:
    world().run(nodes.freeze_master)


@pytest.mark.slow
def test_master_killed_again_and_again(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        for _ in range(ROUNDS):
            await nodes.kill_master(world)

    world().run(faults)


@pytest.mark.slow
def test_frozen_masters_wake_again_and_again(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        for _ in range(max(ROUNDS // 5, 1)):
            await nodes.freeze_master(world)

    world().run(faults)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["before_commit", "in_transaction", "after_commit"])
def test_killed_in_the_middle_of_a_cycle(world: Callable[..., World], step: str) -> None:
    async def faults(world: World) -> None:
        for cycle in (1, 25, 60):
            await nodes.kill_in_cycle(world, step, cycle)

    world().run(faults)


@pytest.mark.slow
def test_all_nodes_killed(world: Callable[..., World]) -> None:
    world().run(nodes.kill_all_nodes)


@pytest.mark.slow
def test_rolling_restart(world: Callable[..., World]) -> None:
    world().run(nodes.restart_one_by_one)


@pytest.mark.slow
def test_drained_and_resumed(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        for _ in range(3):
            await nodes.drain_and_resume(world)

    world().run(faults)
