"""A cluster is rolled back to the earlier version, process by process, and forward again, under load."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.chaos.faults import versions
from tests.chaos.shape import Shape
from tests.chaos.world import World
from tests.support.node.earlier_version import COMMIT, last_release

pytestmark = [pytest.mark.servers, pytest.mark.smoke, pytest.mark.xdist_group("servers")]


@pytest.mark.parametrize("version", [COMMIT, *last_release()])
def test_two_versions_in_one_cluster(version: str, world: Callable[..., World]) -> None:
    world(Shape(nodes=2, proxies=1, shards=2)).run(partial(versions.roll_back_and_forward, version=version))
