"""A node of a cluster backed up while it runs, lost, and put back: the log goes on from where its stores are."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from duemq.dev.cluster.cluster import LocalCluster
from tests.e2e.server import run, wait_for
from tests.support.servers.real_servers import need_servers


def send(proxy: httpx.Client, count: int, after: str) -> list[str]:
    messages = [{"topic": "t", "payload": f"{n}", "deliver_after": after} for n in range(count)]
    results: list[Any] = proxy.post("/v1/messages:batch", json={"messages": messages}).json()["results"]
    return [result["id"] for result in results]


def all_delivered(proxy: httpx.Client, ids: list[str]) -> Callable[[], bool]:
    return lambda: all(proxy.get(f"/v1/messages/{id_}").json().get("status") == "delivered" for id_ in ids)


@pytest.mark.slow
def test_a_restored_node_goes_on_from_the_ledger(tmp_path: Path) -> None:
    need_servers()
    cluster = LocalCluster(tmp_path / "cluster", brokers=1, zookeepers=1, nodes=1, proxies=1)
    try:
        cluster.start()
        (node,) = cluster.nodes
        with httpx.Client(base_url=cluster.proxies[0].url, timeout=300) as proxy:
            soon, later = send(proxy, 20, "200ms"), send(proxy, 20, "1h")
            wait_for(all_delivered(proxy, soon), "the first ones")
            done = run("backup", tmp_path / "into", "--data", node.data, "--json")
            assert done.returncode == 0, done.stderr
            after = send(proxy, 20, "200ms")
            wait_for(all_delivered(proxy, after), "those after the backup")
            later += send(proxy, 5, "1h")
            node.process.kill()
            shutil.rmtree(node.data)
            (backup,) = (tmp_path / "into").iterdir()
            assert not (backup / "bus").exists()
            done = run("restore", backup, "--data", node.data)
            assert done.returncode == 0, done.stderr
            node.start()
            wait_for(lambda: proxy.get("/readyz").status_code == 200, "the node to go on")
            more = send(proxy, 5, "200ms")
            wait_for(all_delivered(proxy, more), "those after the restore")
            records = proxy.get("/v1/topics/t/records?max=1000").json()["records"]
            ids = [record["headers"]["duemq-id"] for record in records]
            assert sorted(ids) == sorted(soon + after + more)
            listed = proxy.get("/v1/messages?topic=t&limit=100").json()["messages"]
            assert {message["id"] for message in listed} == set(later)
    finally:
        cluster.stop()
