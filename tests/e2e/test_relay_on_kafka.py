"""Relays of a cluster: two share what is delivered into topics of Kafka, and one is killed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from duemq.dev.cluster.cluster import LocalCluster
from duemq.dev.cluster.duemq_process import DuemqProcess
from duemq.dev.servers.ports import free_port
from tests.e2e.server import wait_for
from tests.support.http.endpoints import counting_endpoint
from tests.support.servers.real_servers import need_servers

pytestmark = pytest.mark.smoke

MESSAGES = 3_000
SETTINGS = {"relay.private_networks": "127.0.0.0/8", "topics.partitions": "4"}


def relay_of(cluster: LocalCluster, folder: Path, number: int) -> DuemqProcess:
    settings = SETTINGS | {"kafka.bootstrap": cluster.kafka.bootstrap}
    return DuemqProcess("relay", f"relay-{number}", free_port(), folder, settings)


def figures_at(http: httpx.Client, lag: int) -> Any:
    """What a proxy shows of the destination, once its lag is this; None before."""
    figures = http.get("/v1/destinations/shop").json()["figures"]
    return figures if figures and figures["lag"] == lag else None


def test_one_of_two_relays_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    need_servers()
    with (
        counting_endpoint() as (url, received),
        LocalCluster(tmp_path, brokers=1, zookeepers=1, nodes=1, proxies=1, settings=SETTINGS) as cluster,
        httpx.Client(base_url=cluster.proxies[0].url, timeout=120) as http,
    ):
        relays = [relay_of(cluster, tmp_path, number) for number in (1, 2)]
        try:
            for relay in relays:
                relay.start()
            declared = http.post("/v1/destinations", json={"name": "shop", "url": url, "topics": ["orders"]})
            assert declared.status_code == 201, declared.text
            due = int(time.time() * 1000) + 2_000
            messages = [
                {"topic": "orders", "deliver_at": due, "payload": str(n), "key": str(n)} for n in range(MESSAGES)
            ]
            answered = http.post("/v1/messages:batch", json={"messages": messages}).json()
            ids = {result["id"] for result in answered["results"]}
            assert len(ids) == MESSAGES
            named = http.post("/v1/messages", json={"destination": "shop", "payload": "x"}).json()["id"]
            wait_for(lambda: len(received) > MESSAGES // 3, "the first messages")
            relays[0].process.kill()
            wait_for(lambda: ids | {named} <= received.keys(), "all messages")
            assert received.keys() == ids | {named}
            twice = sum(count - 1 for count in received.values())
            assert twice <= 2_000, "no more than a relay has in hand comes again"
            wait_for(lambda: figures_at(http, 0), "figures of a relay that has all")
            figures = figures_at(http, 0)
            assert figures["results"]["accepted"] and figures["lateness_ms"]["p99"] is not None
            relays[0].start()
            again = http.post("/v1/messages", json={"destination": "shop", "payload": "y"}).json()["id"]
            wait_for(lambda: again in received, "a message after the restart")
            wait_for(lambda: len((figures_at(http, 0) or {"relays": ()})["relays"]) == 2, "figures of both relays")
            metrics = httpx.get(f"{relays[1].url}/metrics").text
            assert 'duemq_relay_attempts_total{destination="shop",result="accepted"}' in metrics
            for relay in relays:
                relay.process.stop()
                assert relay.process.exit_code == 0, relay.process.last_words()
        finally:
            for relay in relays:
                relay.process.kill()
