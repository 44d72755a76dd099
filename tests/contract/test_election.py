"""What every election plug promises, run over all plugs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from duemq.election.base import Election, Member, NodeHealth, NodeState
from duemq.election.single import SingleElection
from duemq.election.zookeeper.election import ZooKeeperElection
from duemq.election.zookeeper.options import ZooKeeperOptions
from duemq.election.zookeeper.registry import Registry
from tests.support.patience import SERVERS_S

pytestmark = pytest.mark.anyio

ALL = {0, 1, 2, 3}


@pytest.fixture(params=["single", "zookeeper"])
async def election(request: pytest.FixtureRequest) -> AsyncIterator[Election]:
    """One node's part in an election over four shards, in which it is the only node, and ready."""
    if request.param == "single":
        yield SingleElection(4)
        return
    hosts = request.getfixturevalue("zookeeper").hosts
    registry = Registry(ZooKeeperOptions(hosts, chroot=f"/{uuid4()}"))
    await registry.open()
    election = ZooKeeperElection(registry, Member("local", "http://127.0.0.1:1"), 4)
    await election.report(NodeHealth(NodeState.READY))
    yield election
    await election.leave()
    await registry.close()


async def owns_all(election: Election) -> None:
    async with asyncio.timeout(SERVERS_S):
        while election.owned_shards() != ALL:
            await election.wait_for_change()


async def test_nothing_is_owned_before_joining_and_after_leaving(election: Election) -> None:
    assert election.owned_shards() == frozenset()
    await election.join()
    await owns_all(election)
    assert election.masters() == dict.fromkeys(ALL, "local")
    assert [member.name for member in election.members()] == ["local"]
    await election.leave()
    assert election.owned_shards() == frozenset()


async def test_joining_and_leaving_twice_changes_nothing(election: Election) -> None:
    await election.leave()
    await election.join()
    await election.join()
    await owns_all(election)
    await election.leave()
    await election.leave()
    assert election.owned_shards() == frozenset()


async def test_who_left_may_join_again(election: Election) -> None:
    for _ in range(2):
        await election.join()
        await owns_all(election)
        await election.leave()


async def test_releasing_what_is_owned_or_was_never_held_changes_nothing(election: Election) -> None:
    await election.release(0)
    await election.join()
    await owns_all(election)
    await election.release(0)
    await election.wait_for_change(timeout_s=0.05)
    assert election.owned_shards() == ALL


async def test_what_a_node_reports_is_seen(election: Election) -> None:
    await election.join()
    health = NodeHealth(NodeState.READY, lag={2: 17})
    await election.report(health)
    async with asyncio.timeout(SERVERS_S):
        while election.members()[0].health != health:
            await election.wait_for_change()


async def test_a_change_wakes_who_waits(election: Election) -> None:
    assert not await election.wait_for_change(timeout_s=0)
    waiting = [asyncio.create_task(election.wait_for_change(timeout_s=60)) for _ in range(2)]
    await asyncio.sleep(0)
    await election.join()
    assert await asyncio.gather(*waiting) == [True, True]
    await owns_all(election)
    while await election.wait_for_change(timeout_s=0.05):
        pass
    await election.leave()
    assert await election.wait_for_change(timeout_s=60)
    assert not await election.wait_for_change(timeout_s=0)
