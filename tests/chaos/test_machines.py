"""The machine under a node: its disk is gone, full or failing, or a clock is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.faults import clocks, machines
from tests.chaos.faults.clocks import HOUR_MS
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

either_way = pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS], ids=["ahead", "back"])


@pytest.mark.smoke
@pytest.mark.slow
def test_wiped_disk_is_rebuilt_from_a_snapshot(world: Callable[..., World]) -> None:
    world().run(machines.wipe_disk_and_logs)


@pytest.mark.slow
def test_disk_that_fails_for_a_while(world: Callable[..., World]) -> None:
    world().run(machines.fail_disk)


@pytest.mark.slow
@either_way
def test_clock_of_a_master_is_stepped_by_an_hour(world: Callable[..., World], step_ms: int) -> None:
    async def faults(world: World) -> None:
        await clocks.step_master(world, step_ms)

    world().run(faults)


@pytest.mark.slow
@either_way
def test_clock_of_a_standby_is_stepped_by_an_hour(world: Callable[..., World], step_ms: int) -> None:
    async def faults(world: World) -> None:
        await clocks.step_standby(world, step_ms)

    world().run(faults)


@either_way
def test_clock_of_a_proxy_is_stepped_by_an_hour(world: Callable[..., World], step_ms: int) -> None:
    async def faults(world: World) -> None:
        await clocks.step_proxy(world, step_ms)

    world().run(faults)
