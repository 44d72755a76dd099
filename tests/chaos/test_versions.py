"""A cluster is rolled back to the earlier version, process by process, and forward again, under load."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.faults import versions
from tests.chaos.shape import Shape
from tests.chaos.world import World

pytestmark = [pytest.mark.servers, pytest.mark.smoke, pytest.mark.xdist_group("servers")]


def test_two_versions_in_one_cluster(world: Callable[..., World]) -> None:
    world(Shape(nodes=2, proxies=1, shards=2)).run(versions.roll_back_and_forward)
