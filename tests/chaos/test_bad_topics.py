"""A bad topic delays no other, its messages are not lost, and its fault is reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.faults.topics import BAD_TOPICS, BadTopic, stand_beside
from tests.chaos.shape import Shape
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

_MAX = 1.10  # of the good one's p99, beside to before
_SMALL = Shape(rights=True, partitions=1)
_THREE_BROKERS = Shape(brokers=3, rights=True, partitions=1)
_QUICK = [bad for bad in BAD_TOPICS if bad.brokers == 1]


@pytest.mark.parametrize("bad", _QUICK[:2], ids=lambda bad: bad.name)
def test_good_target_beside_a_bad_one(world: Callable[..., World], bad: BadTopic) -> None:
    async def faults(world: World) -> None:
        await stand_beside(world, bad, per_s=100, seconds=4)

    world(_SMALL).run(faults)


@pytest.mark.slow
@pytest.mark.parametrize("bad", BAD_TOPICS, ids=lambda bad: bad.name)
def test_good_target_of_2000_per_s_beside_a_bad_one(world: Callable[..., World], bad: BadTopic) -> None:
    async def faults(world: World) -> None:
        world.load.up.clear()  # what is measured is the good target, not the load of this test
        before, beside = await stand_beside(world, bad, per_s=2_000, seconds=20)
        world.figures.add("p99 of a good target, before", before.p99)
        world.figures.add(f"p99 of a good target, beside: {bad.name}", beside.p99)
        assert beside.p99 <= before.p99 * _MAX, (before, beside)
        world.load.up.set()
        await world.accept_again(500)

    world(_THREE_BROKERS).run(faults)
