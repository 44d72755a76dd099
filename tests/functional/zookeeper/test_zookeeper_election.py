"""Several nodes on a real ZooKeeper: allotting, handing over, draining, and what operators may get wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from duemq.dev.servers.ports import free_port
from duemq.dev.servers.zookeeper import ZooKeeperServers
from duemq.election.base import Member, NodeHealth, NodeState
from duemq.election.zookeeper.election import ZooKeeperElection
from duemq.election.zookeeper.options import ZooKeeperOptions
from duemq.election.zookeeper.registry import Registry
from duemq.model.errors import BadConfig, Rejected, Unavailable
from tests.support.patience import SERVERS_S
from tests.support.servers.zookeeper_nodes import READY, Cluster, cluster

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def options(zookeeper: ZooKeeperServers) -> ZooKeeperOptions:
    """A chroot of its own."""
    return ZooKeeperOptions(zookeeper.hosts, chroot=f"/{uuid4()}")


@pytest.fixture
async def nodes(options: ZooKeeperOptions) -> AsyncIterator[Cluster]:
    async with cluster(options) as nodes:
        yield nodes


async def test_shards_are_owned_once_and_evenly_whoever_comes_and_goes(nodes: Cluster) -> None:
    for name in "abc":
        await nodes.add(name)
        await nodes.settled()
    assert sorted(Counter(nodes.owned().values()).values()) == [2, 3, 3]
    await nodes.nodes.pop("a").election.leave()
    await nodes.settled()
    assert sorted(Counter(nodes.owned().values()).values()) == [4, 4]
    await nodes.until(nodes.nodes["b"], lambda: nodes.nodes["b"].election.masters() == nodes.owned())


async def test_the_next_owner_waits_until_the_last_one_has_finished(nodes: Cluster) -> None:
    first = await nodes.add("a")
    await nodes.settled()
    first.hands_over = False
    second = await nodes.add("b")
    await nodes.until(first, lambda: len(first.election.owned_shards()) == 4)
    moved = frozenset(range(8)) - first.election.owned_shards()
    await second.election.wait_for_change(0.3)
    assert second.election.owned_shards() == frozenset()
    assert second.election.masters() == dict.fromkeys(range(8), "a")
    for shard in moved:
        await first.election.release(shard)
    await nodes.until(second, lambda: second.election.owned_shards() == moved)


async def test_what_nobody_looked_at_needs_no_release(nodes: Cluster) -> None:
    registry = await nodes.registry()
    blind = ZooKeeperElection(registry, Member("blind", "http://127.0.0.1:1"), 8)
    await blind.report(READY)
    await blind.join()
    async with asyncio.timeout(SERVERS_S):
        while len(blind.masters()) < 8:
            await blind.wait_for_change()
    await nodes.add("a")
    await nodes.until(nodes.nodes["a"], lambda: len(nodes.owned()) == 4)
    await blind.leave()


async def test_a_drained_node_hands_over_and_takes_part_again_when_it_may(nodes: Cluster) -> None:
    first, second = await nodes.add("a"), await nodes.add("b")
    await nodes.settled()
    operator = await nodes.registry()
    await operator.drain("a")
    await operator.drain("a")
    await nodes.settled("b")
    assert first.election.draining()
    assert [member.health.state for member in second.election.members()] == [NodeState.DRAINING, NodeState.READY]
    await operator.drain("b")
    await nodes.until(second, second.election.draining)
    await nodes.settled()
    await operator.resume("a")
    await operator.resume("b")
    await nodes.until(first, lambda: len(first.election.owned_shards()) == 4)
    with pytest.raises(Rejected, match="no node c"):
        await operator.drain("c")
    with pytest.raises(Rejected, match="no node"):
        await operator.resume("../meta")


async def test_a_node_that_is_not_ready_any_more_gives_up_its_shards(nodes: Cluster) -> None:
    first, second = await nodes.add("a"), await nodes.add("b")
    await nodes.settled()
    await first.election.report(NodeHealth(NodeState.OUT, "its disk is full"))
    await nodes.settled("b")
    assert second.election.members()[0].health.reason == "its disk is full"


async def test_a_living_node_declared_dead_by_mistake_gives_up_and_comes_back(nodes: Cluster) -> None:
    first, second = await nodes.add("a"), await nodes.add("b")
    await nodes.settled()
    born, seen = second.registry.registrations["a"].born, set()
    first.registry.listen(lambda: seen.add(("a" in first.registry.registrations, first.election.owned_shards())))
    await second.registry.remove_dead("a", born)
    await nodes.until(first, lambda: (False, frozenset()) in seen)
    await nodes.until(first, lambda: "a" in first.registry.registrations and len(first.election.owned_shards()) == 4)
    await nodes.settled()
    await second.registry.remove_dead("a", born)  # the one they meant is not there any more
    await second.election.wait_for_change(0.1)
    await nodes.settled()
    assert first.registry.registrations["a"].born != born


async def test_two_living_nodes_cannot_have_one_name(nodes: Cluster) -> None:
    await nodes.add("a")
    await nodes.settled()
    with pytest.raises(BadConfig, match=r"another node named a is alive .* choose another node\.name"):
        await nodes.add("a")
    await nodes.settled()


async def test_clusters_in_other_folders_do_not_meet(options: ZooKeeperOptions, zookeeper: ZooKeeperServers) -> None:
    other = ZooKeeperOptions(zookeeper.hosts, chroot=f"{options.chroot}/deeper")
    async with cluster(options) as here, cluster(other) as there:
        await here.add("a")
        await there.add("a")
        await here.settled()
        await there.settled()
        assert len(here.nodes["a"].election.members()) == 1


async def test_whoever_comes_first_makes_what_the_cluster_shares(options: ZooKeeperOptions) -> None:
    registries = [Registry(options) for _ in range(4)]
    for registry in registries:
        await registry.open()
    with pytest.raises(Unavailable, match="no node has started"):
        await registries[0].identity()
    metas = await asyncio.gather(*(registry.identity(16) for registry in registries))
    assert len(set(metas)) == 1
    assert await registries[0].identity() == metas[0]
    with pytest.raises(BadConfig, match=r"shards = 8, but .* made with 16"):
        await registries[0].identity(8)
    for registry in registries:
        await registry.close()


async def test_a_cluster_of_one_user_is_closed_to_others(zookeeper: ZooKeeperServers) -> None:
    chroot = f"/{uuid4()}"
    async with cluster(ZooKeeperOptions(zookeeper.hosts, chroot, user="due", password="mq", acl="creator")) as nodes:
        await nodes.add("a")
        await nodes.settled()
        for user in ("", "due"):
            with pytest.raises(BadConfig, match=r"ZooKeeper refuses user .*zookeeper\.password"):
                await Registry(ZooKeeperOptions(zookeeper.hosts, chroot, user=user, password="wrong")).open()


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"hosts": "localhost"}, r"zookeeper\.hosts"),
        ({"hosts": "one:2181,two:x"}, r"zookeeper\.hosts"),
        ({"hosts": "one:2181/duemq"}, r"zookeeper\.chroot"),
        ({"chroot": "duemq"}, r"zookeeper\.chroot"),
        ({"acl": "creator"}, r"zookeeper\.user"),
        ({"tls": True, "ca_file": "/nowhere.pem"}, r"zookeeper\.ca_file"),
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, object], key: str) -> None:
    with pytest.raises(BadConfig, match=key):
        ZooKeeperOptions(**wrong)  # type: ignore[arg-type]


async def test_where_no_server_listens_the_start_says_so_in_time() -> None:
    registry = Registry(ZooKeeperOptions(f"127.0.0.1:{free_port()}", connect_timeout_s=0.5))
    with pytest.raises(Unavailable, match="no ZooKeeper answered"):
        await registry.open()
