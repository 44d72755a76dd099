"""Nodes that die, freeze or lose their session, on a real ZooKeeper."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from duemq.dev.servers.zookeeper import ZooKeeperServers
from duemq.election.zookeeper.options import ZooKeeperOptions
from tests.support.patience import SERVERS_S
from tests.support.servers.real_servers import need_servers
from tests.support.servers.zookeeper_nodes import child, cluster

pytestmark = pytest.mark.anyio

DEAD_WITHIN_S = 2.0  # a fifth of the session; alone on a machine it is a few hundredths of a second


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def zookeeper_of_its_own(tmp_path: Path) -> Iterator[ZooKeeperServers]:
    need_servers()
    with ZooKeeperServers(tmp_path / "zookeeper") as servers:
        yield servers


@pytest.fixture
def options(zookeeper: ZooKeeperServers) -> ZooKeeperOptions:
    """Sessions that expire far later than these tests wait for a death to be noticed."""
    return ZooKeeperOptions(zookeeper.hosts, chroot=f"/{uuid4()}", session_timeout_s=10)


async def test_a_killed_process_is_replaced_long_before_its_session_expires(options: ZooKeeperOptions) -> None:
    async with cluster(options) as nodes, child(options, "victim") as victim:
        survivor = await nodes.add("a")
        await nodes.until(survivor, lambda: len(survivor.election.owned_shards()) == 4)
        await nodes.until(survivor, lambda: survivor.election.masters().keys() == set(range(8)))
        victim.kill()
        assert await nodes.until(survivor, lambda: len(survivor.election.owned_shards()) == 8) < DEAD_WITHIN_S
        assert [member.name for member in survivor.election.members()] == ["a"]


async def test_a_killed_process_can_come_back_under_its_name_at_once(options: ZooKeeperOptions) -> None:
    async with child(options, "victim") as victim:
        victim.kill()
        await victim.wait()
        async with cluster(options) as nodes:
            again = await nodes.add("victim")
            assert await nodes.until(again, lambda: len(again.election.owned_shards()) == 8) < DEAD_WITHIN_S


@pytest.mark.slow
async def test_a_frozen_process_is_replaced_when_its_session_expires(zookeeper: ZooKeeperServers) -> None:
    options = ZooKeeperOptions(zookeeper.hosts, chroot=f"/{uuid4()}", session_timeout_s=2)
    async with cluster(options) as nodes, child(options, "victim") as victim:
        survivor = await nodes.add("a")
        await nodes.until(survivor, lambda: len(survivor.election.masters()) == 8)
        await nodes.until(survivor, lambda: len(survivor.election.owned_shards()) == 4)
        victim.send_signal(signal.SIGSTOP)
        try:
            took_s = await nodes.until(survivor, lambda: len(survivor.election.owned_shards()) == 8)
        finally:
            victim.send_signal(signal.SIGCONT)
        assert 1 < took_s < 6
        await nodes.until(survivor, lambda: len(survivor.election.owned_shards()) == 4)


async def test_a_node_whose_session_expired_owns_nothing_and_comes_back(options: ZooKeeperOptions) -> None:
    async with cluster(options) as nodes:
        first, second = await nodes.add("a"), await nodes.add("b")
        await nodes.settled()
        instance = first.registry.registrations["a"].born
        lost = asyncio.Event()
        first.registry.listen(lambda: None if first.election.owned_shards() else lost.set())
        await asyncio.to_thread(expire, options.hosts, first.registry.session._client.client_id)
        async with asyncio.timeout(SERVERS_S):
            await lost.wait()
        await nodes.until(first, lambda: len(first.election.owned_shards()) == 4)
        assert first.registry.registrations["a"].born != instance
        await nodes.until(second, lambda: len(nodes.owned()) == 8)


@pytest.mark.slow
async def test_without_a_server_masters_pause_and_keep_what_they_own(
    zookeeper_of_its_own: ZooKeeperServers,
) -> None:
    servers = zookeeper_of_its_own
    async with cluster(ZooKeeperOptions(servers.hosts, session_timeout_s=10)) as nodes:
        node = await nodes.add("a")
        await nodes.settled()
        await asyncio.to_thread(servers.kill, 1)
        await nodes.until(node, node.election.is_paused)
        assert len(node.election.owned_shards()) == 8
        await asyncio.to_thread(servers.start, 1)
        await nodes.until(node, lambda: not node.election.is_paused())
        await nodes.settled()


async def test_leaving_ends_every_thread_and_task(options: ZooKeeperOptions) -> None:
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    async with cluster(options) as nodes:
        await nodes.add("a")
        await nodes.add("b")
        await nodes.settled()
    await asyncio.sleep(0)
    assert {thread.name for thread in set(threading.enumerate()) - threads} == set()
    assert {task.get_name() for task in asyncio.all_tasks() - tasks} == set()


def expire(hosts: str, client_id: tuple[int, bytes]) -> None:
    """End somebody's session, as the server does when it expires."""
    client = KazooClient(hosts, client_id=client_id)
    client.start()
    client.stop()
    client.close()
