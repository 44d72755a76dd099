"""Messages are found by key and label with the command, in delay files too, across kills and on another node."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from duemq.dev.cluster.cluster import LocalCluster
from tests.e2e.server import Server, run, wait_for
from tests.support.servers.real_servers import need_servers

COUNT = 300
INDEX = {"index.topics": "ord*"}
HOUR_MS = 3_600_000


def messages(due_ms: int) -> dict[str, Any]:
    return {
        "messages": [
            {
                "topic": "orders",
                "payload": "",
                "deliver_at": due_ms + n,
                "key": f"k{n % 100}",
                "labels": [f"of-{n % 3}"],
            }
            for n in range(COUNT)
        ]
    }


def find(url: str, *options: str) -> list[dict[str, Any]]:
    """What `duemq find` prints."""
    done = run("find", *options, "--json", url=url)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_messages_are_found_by_the_command(new_server: Callable[..., Server]) -> None:
    sealing = {"delay_files.seal_rows": "50", "delay_files.seal_windows": "1"}
    options = [word for name, value in (INDEX | sealing).items() for word in ("--set", f"{name}={value}")]
    server = new_server(*options).start()
    due_ms = int(time.time() * 1000) + 4 * HOUR_MS
    sent = server.call("POST", "/v1/messages:batch", messages(due_ms)).json()["results"]
    ids = [item["id"] for item in sent]
    wait_for(lambda: f"sealed {COUNT} messages" in server.log, "a delay file")
    server.kill()
    server.start()
    assert server.call("DELETE", f"/v1/messages/{ids[7]}").json()["status"] == "cancelled"
    assert server.call("POST", f"/v1/messages/{ids[107]}:deliver-now").status_code == 200
    wait_for(
        lambda: server.call("GET", f"/v1/messages/{ids[107]}").json()["status"] == "delivered", "it to be delivered"
    )

    def outcomes() -> list[tuple[str, str]]:
        return [(message["id"], message["status"]) for message in find(server.url, "--key", "k7")]

    expected = [(ids[107], "delivered"), (ids[7], "cancelled"), (ids[207], "scheduled")]
    assert outcomes() == expected
    server.kill()
    server.start()
    assert outcomes() == expected
    assert [message["id"] for message in find(server.url, "--key", "k7", "--status", "scheduled")] == [ids[207]]
    assert len(find(server.url, "--label", "of-1", "--topic", "orders", "--all")) == COUNT // 3
    assert len(find(server.url, "--label", "of-1", "--from", str(due_ms), "--to", str(due_ms + 30))) == 10
    refused = run("find", "--key", "k7", "--topic", "others", url=server.url)
    assert refused.returncode != 0 and "not indexed" in refused.stderr
    assert run("find", url=server.url).returncode == 2

    assert server.stop() == 0, server.log
    checked = run("verify", "--data", server.data)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    server.start("--set", "index.topics=ord*,others")  # other topics: it is built anew
    wait_for(lambda: "the index is built" in server.log, "the index to be built")
    assert sorted(outcomes()) == sorted(expected)


@pytest.mark.slow
@pytest.mark.smoke
def test_the_index_of_another_node_answers(tmp_path: Path) -> None:
    need_servers()
    cluster = LocalCluster(tmp_path, brokers=1, zookeepers=1, nodes=2, proxies=1, settings=INDEX)
    with cluster, httpx.Client(base_url=cluster.proxies[0].url, timeout=120) as http:
        due_ms = int(time.time() * 1000) + HOUR_MS
        sent = http.post("/v1/messages:batch", json=messages(due_ms)).json()["results"]
        ids = [item["id"] for item in sent]
        assert http.delete(f"/v1/messages/{ids[7]}").json()["status"] == "cancelled"
        query = "/v1/messages?key=k7&order=newest"
        before = http.get(query).json()["messages"]
        assert {(message["id"], message["status"]) for message in before} == {
            (ids[7], "cancelled"), (ids[107], "scheduled"), (ids[207], "scheduled"),
        }  # fmt: skip

        def masters() -> set[str]:
            return {shard["master"] for shard in http.get("/v1/cluster").json()["shards"]}

        first, second = cluster.nodes
        first.process.kill()
        wait_for(lambda: masters() == {second.name}, "the other node to lead")
        assert http.get(query).json()["messages"] == before
