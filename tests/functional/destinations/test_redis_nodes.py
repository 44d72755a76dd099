"""The Redis, the Valkey and the cluster of the tests keep what they answered, and show what arrived."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis import Redis
from redis.cluster import RedisCluster as ClusterClient

from tests.support.destinations.redis_nodes import Make, RedisCluster, RedisNode
from tests.support.servers.real_servers import need

pytestmark = [pytest.mark.servers, pytest.mark.smoke, pytest.mark.xdist_group("destinations")]
BODY = bytes(range(256))


@pytest.mark.parametrize("make", ["redis", "valkey"])
def test_what_was_answered_survives_a_kill(tmp_path: Path, make: Make) -> None:
    with need(lambda: RedisNode(tmp_path, make=make)) as node:
        with Redis.from_url(node.url) as client:
            ids = [client.xadd("orders", {"trace": b"\xff4711", "payload": BODY}) for _ in range(20)]
            client.rpush("list", BODY, b"")
        node.restart()
        with Redis.from_url(node.url) as client:
            read = client.xread({"orders": "0"})
            assert [id_ for id_, _ in read[0][1]] == ids
        arrived = need(lambda: node.dump("orders"))  # by redis-cli
        assert [each.properties["id"].encode() for each in arrived] == ids
        assert all(each.body == BODY and each.headers == {"trace": b"\xff4711"} for each in arrived)
        assert [each.body for each in node.dump("list")] == [BODY, b""]


def test_tls(tmp_path: Path) -> None:
    with (
        need(lambda: RedisNode(tmp_path, fsync="everysec")) as node,
        Redis.from_url(node.tls_url, ssl_ca_certs=str(node.ca)) as client,
    ):
        assert client.ping()


def test_a_cluster_comes_back(redis_cluster: RedisCluster) -> None:
    keys = [f"orders-{number}" for number in range(30)]
    with ClusterClient.from_url(redis_cluster.url) as client:
        assert len({client.keyslot(key) * 3 // 16_384 for key in keys}) == 3
        for key in keys:
            client.xadd(key, {"payload": BODY})
    redis_cluster.nodes[1].kill()
    redis_cluster.start()
    for key in keys:
        assert [each.body for each in redis_cluster.nodes[0].dump(key)] == [BODY]
