"""Topics of duemq's own that are away: deliveries go on beside them, and all is reconciled."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.faults.own_topics import ADMINISTRATIVE, delete, lose_the_leaders
from tests.chaos.shape import Shape
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]


def test_administrative_topics_are_deleted_under_load(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        for topic in ADMINISTRATIVE:
            await delete(world, topic)

    world().run(faults)


@pytest.mark.slow
def test_administrative_topics_lose_their_leader_under_load(world: Callable[..., World]) -> None:
    world(Shape(brokers=3)).run(lose_the_leaders)
