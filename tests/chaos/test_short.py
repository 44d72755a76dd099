"""The short form: one breakage of each kind, one after the other, on one broker.

The load goes on all the time, and everything that was sent is reconciled in the end.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.hour.draw import BREAKAGES
from tests.chaos.shape import Shape
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.smoke, pytest.mark.xdist_group("chaos")]

_SHAPE = Shape(network=True, rights=True, partitions=1)
_NAMES = {
    "kill -9 in a cycle: in_transaction",
    "logs emptied, a node comes back: stale",
    "a master cut off from the brokers",
    "a stranger's transaction open on the buffer",
    "the clock of a master an hour ahead",
    "the clock of a proxy an hour back",
    "bad topic: compacted, and messages have no key",
    "bad topic: no right to create",
    "duemq.admin deleted",
    "duemq.trail deleted",
}


def test_one_breakage_of_each_kind(world: Callable[..., World]) -> None:
    chosen = [breakage for breakage in BREAKAGES if breakage.name in _NAMES]
    assert len(chosen) == len(_NAMES)

    async def faults(world: World) -> None:
        for breakage in chosen:
            await breakage.act(world)

    world(_SHAPE).run(faults)
