"""What every election plug promises, run over all plugs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from duemq.election.base import Election
from duemq.election.single import SingleElection

pytestmark = pytest.mark.anyio

PLUGS: dict[str, Callable[[int], Election]] = {"single": SingleElection}


@pytest.fixture(params=PLUGS)
def election(request: pytest.FixtureRequest) -> Election:
    """One node's part in an election over four shards, in which it is the only node."""
    return PLUGS[request.param](4)


async def test_nothing_is_owned_before_joining_and_after_leaving(election: Election) -> None:
    assert election.owned() == frozenset()
    await election.join()
    assert election.owned() == {0, 1, 2, 3}
    await election.leave()
    assert election.owned() == frozenset()


async def test_joining_and_leaving_twice_changes_nothing(election: Election) -> None:
    await election.leave()
    await election.join()
    await election.join()
    assert election.owned() == {0, 1, 2, 3}
    await election.leave()
    await election.leave()
    assert election.owned() == frozenset()


async def test_a_change_wakes_who_waits_and_is_told_once(election: Election) -> None:
    assert not await election.changed(timeout_s=0)
    waiting = asyncio.create_task(election.changed(timeout_s=5))
    await asyncio.sleep(0)
    await election.join()
    assert await waiting
    assert not await election.changed(timeout_s=0)
    await election.leave()
    assert await election.changed(timeout_s=5)
