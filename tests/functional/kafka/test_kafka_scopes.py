"""Topics of duemq's own that are deleted, forbidden or without a leader: what does not need them goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq.cluster.topics.internal_topics import ADMIN, BUFFER, JOBS, LEDGER, TRAIL
from duemq.dev.cluster.cluster import LocalCluster
from tests.chaos.topics import delete_topic, end_offsets, make_topic
from tests.e2e.server import wait_for
from tests.functional.kafka.scope_site import SETTINGS, ScopeSite, place_topics
from tests.support.servers.kafka_rights import AUTHORIZER, deny_topic
from tests.support.servers.real_servers import need_servers

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("servers")]

_KILLED = 3  # a broker
_PLACES = {
    BUFFER: {0: 1, 1: 1}, LEDGER: {0: 1, 1: _KILLED}, "duemq.clock": {0: 1},
    ADMIN: {0: _KILLED}, JOBS: {0: _KILLED}, TRAIL: {0: _KILLED, 1: _KILLED},
}  # fmt: skip


def test_topics_without_a_leader_stop_only_what_needs_them(tmp_path: Path) -> None:
    """All administrative ones, and a partition of the ledger: the other shard goes on on the node and the proxy."""
    need_servers()
    cluster = LocalCluster(tmp_path, brokers=3, nodes=1, proxies=1, settings=SETTINGS)
    try:
        cluster.kafka.start()
        asyncio.run(place_topics(cluster.kafka.bootstrap, _PLACES))
        asyncio.run(make_topic(cluster.kafka.bootstrap, "t", replicas={0: [1]}, settings={"min.insync.replicas": "1"}))
        cluster.start()
        site = ScopeSite(cluster)
        site.deliver_beside("t", seconds=1)
        assert site.ask("GET", "/v1/trail").status_code == 200  # it is followed from now on
        cluster.kafka.kill(_KILLED)
        site.deliver_beside("t", shards=[0])
        site.until_told([ADMIN, JOBS, TRAIL, LEDGER], shards=["1"])
        site.deliver_beside("t", shards=[0])
        assert site.put("t", shard=1).status_code == 503
        assert site.ask("GET", "/v1/trail").status_code == 503
        free = {"topic": "t", "payload": "free", "deliver_after": "1s"}
        assert {site.ask("POST", "/v1/messages", json=free).status_code for _ in range(4)} == {201}
        cluster.kafka.start(_KILLED)
        site.until_told()
        site.deliver_beside("t", seconds=2)
        assert site.ask("GET", "/v1/trail").status_code == 200
    finally:
        cluster.close()


def test_deleted_administrative_topics_are_made_again_and_lost_keys_open_nothing(tmp_path: Path) -> None:
    need_servers()
    with LocalCluster(tmp_path, nodes=1, proxies=1, settings=SETTINGS) as cluster:
        site, bootstrap = ScopeSite(cluster), cluster.kafka.bootstrap
        site.headers = site.make_key("first")
        wait_for(lambda: site.ask("GET", "/v1/trail").status_code == 200, "the key to be known")
        for topic in (JOBS, TRAIL):
            asyncio.run(delete_topic(bootstrap, topic))
            site.deliver_beside("t")
            site.until_told()
        assert site.ask("GET", "/v1/trail").status_code == 200
        due = dict(site.schedule("t", number % 2, f"{number + 2}s") for number in range(12))
        asyncio.run(delete_topic(bootstrap, ADMIN))
        wait_for(lambda: site.put("t", 0).status_code == 401, "the key to be lost")
        old, site.headers = site.headers, {}
        assert site.put("t", 0).status_code == 401, "what had keys is not open"
        site.until_delivered("t", due)
        wait_for(lambda: asyncio.run(_records(bootstrap)) > 0, "the loss to be written down")
        site.proxy.process.stop()
        site.proxy.start()
        assert site.put("t", 0).status_code == 401, "nor is a proxy that starts later"
        site.headers = site.make_key("second")
        wait_for(lambda: site.put("t", 0).status_code == 201, "the new key to be known")
        site.headers = old
        assert site.put("t", 0).status_code == 401
        site.until_told()


async def _records(bootstrap: str) -> int:
    return sum((await end_offsets(bootstrap, [ADMIN])).values())


def test_administrative_topics_that_are_forbidden_stop_only_what_needs_them(tmp_path: Path) -> None:
    need_servers()
    cluster = LocalCluster(tmp_path, nodes=1, proxies=1, settings=SETTINGS, kafka_extra=AUTHORIZER, kafka_secure=True)
    for process in (*cluster.nodes, *cluster.proxies):
        process.settings |= {
            "kafka.bootstrap": cluster.kafka.secure_bootstrap, "kafka.protocol": "SASL_SSL",
            "kafka.mechanism": "PLAIN", "kafka.user": cluster.kafka.plain.name,
            "kafka.password": cluster.kafka.plain.password, "kafka.ca_file": str(cluster.kafka.ca_file),
        }  # fmt: skip
    with cluster:
        site = ScopeSite(cluster)
        assert site.ask("GET", "/v1/trail").status_code == 200
        for topic in (ADMIN, JOBS, TRAIL):
            deny_topic(cluster.kafka.bootstrap, cluster.kafka.plain.name, topic)
        site.deliver_beside("t")
        site.until_told([ADMIN, JOBS, TRAIL])
        site.deliver_beside("t")
        assert site.ask("GET", "/v1/trail").status_code == 503
        assert site.ask("POST", "/v1/keys", json={"name": "k", "role": "admin"}).status_code == 503
        cluster.nodes[0].process.stop()
        cluster.nodes[0].start()  # nor do they keep a node from starting
        site.deliver_beside("t", seconds=2)
