"""The outlet of Redis on a cluster of three masters."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from redis.asyncio import Redis

from duemq.dev.servers.ports import HOST
from duemq.relay.base import Result
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
        assert "set the option cluster" in moved[0].detail


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
