"""The outlet of Redis on a cluster of three masters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from duemq.client.consumer.message import Message
from duemq.dev.servers.ports import HOST
from duemq.relay.base import Reply, Result
from tests.functional.destinations.test_redis_outlet import outlet_to, until, until_accepted
from tests.support.destinations.redis_nodes import RedisCluster, RedisNode
from tests.support.outlets.redis_site import read_stream
from tests.support.outlets.site import out_message
from tests.support.servers.real_servers import need

pytestmark = [
    pytest.mark.anyio, pytest.mark.servers, pytest.mark.smoke, pytest.mark.xdist_group("destinations"),
]  # fmt: skip


async def test_a_master_that_is_away_holds_up_its_own_slots(redis_cluster: RedisCluster) -> None:
    first, second, _ = redis_cluster.nodes
    messages = [out_message(number, key=b"{k}%%%d}" % number) for number in range(60)]
    async with outlet_to(redis_cluster.url, cluster=True, timeout=2_000, name="of-{{ key }}") as outlet:
        for _ in range(2):  # the second time they are known
            replies = await asyncio.gather(*map(outlet.send, messages))
            assert {reply.result for reply in replies} == {Result.ACCEPTED}
        second.kill()
        results = [reply.result for reply in await asyncio.gather(*map(outlet.send, messages))]
        assert {*results} == {Result.ACCEPTED, Result.AWAY}
        await asyncio.to_thread(redis_cluster.start)
        for message in messages:
            await until_accepted(outlet, message)
    for number in range(60):
        (arrived,) = read_stream(first, f"of-%7Bk%7D%25{number}%7D")
        assert arrived.id == messages[number].id


async def test_slots_that_move_are_followed(redis_cluster: RedisCluster) -> None:
    async with outlet_to(redis_cluster.url, cluster=True, name="{{ topic }}") as outlet:
        assert (await outlet.send(out_message(2))).status == "ok"
        slot = redis_cluster.nodes[0].ask("CLUSTER", "KEYSLOT", "orders").strip()
        owner = int(slot) * 3 // 16_384
        target = redis_cluster.nodes[(owner + 1) % 3]
        redis_cluster.nodes[owner].ask("FLUSHALL")  # a slot that has keys cannot be given away
        id_ = target.ask("CLUSTER", "MYID").strip()
        for node in redis_cluster.nodes:
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", id_)
        replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(3, 50)))
        assert {reply.status for reply in replies} == {"ok"}
    assert len(read_stream(target, "orders")) == 47


async def test_channels_and_lists(redis_cluster: RedisCluster) -> None:
    async with (
        outlet_to(redis_cluster.url, cluster=True, kind="pubsub", name="news", envelope="none") as outlet,
        Redis.from_url(redis_cluster.nodes[2].url) as client,
        client.pubsub() as subscriber,
    ):
        await subscriber.subscribe("news")
        assert (await subscriber.get_message(timeout=10))["type"] == "subscribe"
        replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(5)))
        assert {reply.result for reply in replies} == {Result.ACCEPTED}
        for _ in range(5):
            assert (await subscriber.get_message(timeout=10))["data"] == b"payload"
    async with outlet_to(redis_cluster.url, cluster=True, kind="list", name="list", envelope="none") as outlet:
        assert [(await outlet.send(out_message(1))).status for _ in range(2)] == ["ok", "duplicate"]


async def test_the_option_and_the_server_have_to_agree(redis_cluster: RedisCluster) -> None:
    async with outlet_to(redis_cluster.url, name="of-{{ key }}") as outlet:
        replies = [await outlet.send(out_message(number, key=b"%d" % number)) for number in range(20)]
        moved = [reply for reply in replies if reply.status == "MOVED"]
        assert moved and {reply.result for reply in moved} == {Result.AWAY}
        assert "set the option `cluster`" in moved[0].detail


async def test_one_server_is_no_cluster(redis_node: RedisNode) -> None:
    async with outlet_to(redis_node.url, cluster=True) as outlet:
        reply = await outlet.send(out_message(1))
        assert reply.result is Result.AWAY and "Cluster mode is not enabled" in reply.detail


async def test_a_replica_that_takes_over_is_found(redis_cluster: RedisCluster, tmp_path: Path) -> None:
    first, second, _ = redis_cluster.nodes
    master = second.ask("CLUSTER", "MYID").strip()
    messages = [out_message(number, key=b"%d" % number) for number in range(60)]
    with need(lambda: RedisNode(tmp_path / "replica", cluster=True)) as replica:
        first.ask("CLUSTER", "MEET", HOST, str(replica.port), str(replica.peer_port))
        await until(lambda: master in replica.ask("CLUSTER", "NODES"))
        replica.ask("CLUSTER", "REPLICATE", master)
        await until(lambda: "master_link_status:up" in replica.ask("INFO", "replication"))
        async with outlet_to(redis_cluster.url, cluster=True, timeout=2_000, name="of-{{ key }}") as outlet:
            await asyncio.gather(*map(outlet.send, messages[:30]))
            second.kill()
            for message in messages:
                await until_accepted(outlet, message)
        for number in range(30, 60):
            (arrived,) = read_stream(first, f"of-{number}")
            assert arrived.id == messages[number].id


async def test_a_master_killed_on_the_way_loses_none_that_a_replica_had(tmp_path: Path) -> None:
    messages = [out_message(number, key=b"%d" % (number % 30)) for number in range(6_000)]
    accepted = 0

    async def hand_on(part: list[Message]) -> None:
        nonlocal accepted
        for message in part:
            await until_accepted(outlet, message)
            accepted += 1

    with need(lambda: RedisCluster(tmp_path, replicas=True)) as cluster:
        second, takes_over = cluster.nodes[1], cluster.replicas[1]
        options: dict[str, Any] = {"cluster": True, "replicas": 1, "timeout": 2_000, "name": "of-{{ key }}"}
        async with outlet_to(cluster.url, **options) as outlet:
            handing = asyncio.gather(*(hand_on(messages[start::200]) for start in range(200)))
            await until(lambda: accepted >= 2_000)
            await asyncio.to_thread(second.kill)
            await until(lambda: "role:master" in takes_over.ask("INFO", "replication"))
            assert accepted < 6_000
            await asyncio.to_thread(second.start)  # as a replica: there is one again
            await handing
        arrived = [each.id for number in range(30) for each in read_stream(cluster.nodes[0], f"of-{number}")]
        assert sorted(arrived) == sorted(message.id for message in messages)


async def test_what_no_replica_has_is_lost_with_its_master_and_not_accepted_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    with need(lambda: RedisCluster(tmp_path, replicas=True)) as cluster:
        first, second, _ = cluster.nodes
        replica = cluster.replicas[1]
        name = next(f"s-{n}" for n in range(99) if _master_of(first, f"s-{n}") == 1)
        options: dict[str, Any] = {"cluster": True, "timeout": 2_000, "name": name}
        async with outlet_to(cluster.url, **options) as hasty, outlet_to(cluster.url, **options, replicas=1) as careful:
            assert (await careful.send(out_message(1))).status == "ok"
            replica.process.pause()
            second.ask("CLIENT", "KILL", "TYPE", "replica")  # what was written to it would be there, unread
            assert (await hasty.send(out_message(2))).status == "ok"
            assert await careful.send(out_message(3)) == Reply(Result.AWAY, "not_durable", "on 0 of 1 replicas")
            assert (await careful.send(out_message(4)))[:2] == (Result.AWAY, "not_durable")
            second.kill()
            replica.process.resume()
            await until_accepted(hasty, out_message(5))
            second.start()
            for number in (3, 4):
                await until_accepted(careful, out_message(number))
        assert [each.id for each in read_stream(first, name)] == [out_message(number).id for number in (1, 5, 3, 4)]


def _master_of(node: RedisNode, name: str) -> int:
    """The number of the one that has the slot of this name."""
    return int(node.ask("CLUSTER", "KEYSLOT", name)) * 3 // 16_384


async def test_on_disk_in_a_cluster(tmp_path: Path) -> None:
    with need(lambda: RedisCluster(tmp_path, make="valkey")) as cluster:
        messages = [out_message(number, key=b"%d" % number) for number in range(30)]
        async with outlet_to(cluster.url, cluster=True, fsync=True, name="of-{{ key }}") as outlet:
            assert {(await outlet.send(message)).status for message in messages} == {"ok"}
            cluster.nodes[1].ask("CONFIG", "SET", "appendonly", "no")
            replies = await asyncio.gather(*map(outlet.send, messages))
            assert {reply.result for reply in replies} == {Result.ACCEPTED, Result.AWAY}  # its own slots alone
            assert {"appendonly" in reply.detail for reply in replies if reply.result is Result.AWAY} == {True}


async def test_slots_that_move_are_followed_where_replicas_are_waited_for(tmp_path: Path) -> None:
    with need(lambda: RedisCluster(tmp_path, replicas=True)) as cluster:
        options: dict[str, Any] = {"cluster": True, "replicas": 1, "name": "{{ topic }}"}
        async with outlet_to(cluster.url, **options) as outlet:
            assert (await outlet.send(out_message(1))).status == "ok"
            slot = cluster.nodes[0].ask("CLUSTER", "KEYSLOT", "orders").strip()
            owner = _master_of(cluster.nodes[0], "orders")
            target = cluster.nodes[(owner + 1) % 3]
            cluster.nodes[owner].ask("FLUSHALL")
            id_ = target.ask("CLUSTER", "MYID").strip()
            for node in cluster.nodes:
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", id_)
            moved = await outlet.send(out_message(2))
            assert moved[:2] == (Result.AWAY, "MOVED") and "set the option" not in moved.detail
            await until_accepted(outlet, out_message(2))  # as soon as all nodes tell of it
        assert len(read_stream(target, "orders")) == 1


@pytest.fixture
def cluster_by_tls(tmp_path: Path) -> Iterator[RedisCluster]:
    with need(lambda: RedisCluster(tmp_path, tls=True)) as cluster:
        yield cluster


async def test_tls_and_users_of_a_cluster(cluster_by_tls: RedisCluster) -> None:
    cluster = cluster_by_tls
    rights = ("~of-*", "~duemq:*", "+evalsha", "+eval", "+set", "+xadd", "+cluster|slots", "+command")
    for node in cluster.nodes:
        node.ask("ACL", "SETUSER", "relay", "on", ">secret", *rights)
        node.ask("CONFIG", "SET", "requirepass", "of the administrator")
    ca = cluster.ca.read_text()
    relay = {"username": "relay", "password": "secret"}
    messages = [out_message(number, key=b"%d" % number) for number in range(30)]
    url, first = cluster.url, cluster.nodes[0]
    async with outlet_to(url, {"ca": ca, **relay}, cluster=True, name="of-{{ key }}") as outlet:
        replies = await asyncio.gather(*map(outlet.send, messages))
        assert {reply.status for reply in replies} == {"ok"}
        async with Redis.from_url(first.url, password="of the administrator") as client:
            clients = await client.client_list()
        ports = {int(one["laddr"].rpartition(":")[2]) for one in clients if one["user"] == "relay"}
        assert ports == {first.tls_port}
    for credentials, status in (
        ({"ca": ca, **relay, "password": "guess"}, "WRONGPASS"), ({"ca": ca}, "NOAUTH"), (relay, "tls"),
    ):  # fmt: skip
        async with outlet_to(url, credentials, cluster=True, name="of-{{ key }}") as outlet:
            assert (await outlet.send(messages[0]))[:2] == (Result.AWAY, status)
    async with outlet_to(url, {"ca": ca, **relay}, cluster=True, name="others-{{ key }}") as outlet:
        assert (await outlet.send(messages[0]))[:2] == (Result.FAILED, "NOPERM")
    async with outlet_to(url, {"ca": ca, **relay}, cluster=True, name="others") as outlet:
        assert (await outlet.send(messages[0]))[:2] == (Result.AWAY, "NOPERM")
