"""Data folders and a Kafka log that an earlier version wrote are opened by this one, and nothing in them is lost."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from duemq.dev.cluster.cluster import LocalCluster
from tests.e2e.server import Server, run, wait_for
from tests.support.patience import PROCESS_S
from tests.support.servers.real_servers import need_servers

SAMPLES = Path(__file__).parents[1] / "samples" / "formats"
SETTINGS = {
    "limits.max_delay": "1000y",
    "storage.retention": "1000y",
    "delay_files.seal_rows": "5",
    **{f"storage.{mark}_percent": "100" for mark in ("purge", "shorten", "refuse")},
}


def unpack(name: str, into: Path) -> tuple[Path, dict[str, Any]]:
    """The folder that was written, and what it holds."""
    with tarfile.open(SAMPLES / f"{name}.tar.gz") as archive:
        archive.extractall(into, filter="data")
    return into / "data", json.loads((into / "expected.json").read_bytes())


def imported_ids(expected: dict[str, Any]) -> list[str]:
    ids = expected["import"]["ids"]
    return [ids[start : start + 32] for start in range(0, len(ids), 32)]


def check_everything(http: httpx.Client, expected: dict[str, Any]) -> None:
    """Ask for each message and each file of the sample."""

    def state(message_id: str) -> dict[str, Any]:
        answer: dict[str, Any] = http.get(f"/v1/messages/{message_id}").json()
        return answer

    for message_id, (due_ms, payload) in expected["pending"].items():
        found = state(message_id)
        assert (found.get("status"), found.get("deliver_at_ms"), found.get("payload")) == ("scheduled", due_ms, payload)
    for message_id, due_ms in expected["rescheduled"].items():
        assert (state(message_id)["status"], state(message_id)["deliver_at_ms"]) == ("scheduled", due_ms)
    for name, message_id in expected["names"].items():
        assert (state(name)["status"], state(name)["id"]) == ("scheduled", message_id)
    assert [state(message_id)["status"] for message_id in expected["cancelled"]] == ["cancelled"]
    assert [state(message_id)["status"] for message_id in expected["delivered"]] == ["delivered"] * 3

    # The earlier version did not count by topic: all is counted again.
    listed = http.get("/v1/messages?limit=1000").json()["messages"]
    counts = Counter(message["topic"] for message in listed)

    def pending() -> dict[str, int]:
        return {topic: http.get(f"/v1/topics/{topic}").json()["pending"] for topic in counts}

    wait_for(lambda: pending() == counts, f"{counts} to be pending")

    imported = expected["import"]
    assert http.get(f"/v1/imports/{imported['id']}").json()["state"] == "imported"
    assert http.get(f"/v1/imports/{imported['id']}/ids").text == imported["ids"]
    assert http.get(f"/v1/imports/{expected['rejected']}").json()["state"] == "rejected"
    payloads = [state(message_id)["payload"] for message_id in imported_ids(expected)]
    assert payloads == [f"file {row}" for row in range(imported["rows"])]


def change_something(http: httpx.Client, expected: dict[str, Any]) -> None:
    """Deliver a message out of a sealed window and one out of the imported file, and cancel one of each."""
    sealed, file = list(expected["pending"])[:2], imported_ids(expected)[:2]
    for message_id in (sealed[0], file[0]):
        assert http.post(f"/v1/messages/{message_id}:deliver-now").status_code == 200
    for message_id in (sealed[1], file[1]):
        assert http.delete(f"/v1/messages/{message_id}").json()["status"] == "cancelled"

    def payloads() -> set[str]:
        records = http.get("/v1/topics/orders/records?wait=1s").json()["records"]
        return {record["payload"] for record in records}

    wait_for(lambda: {"far 0", "file 0"} <= payloads(), "both deliveries")
    assert not {"far 1", "file 1"} & payloads()


def test_a_data_folder(tmp_path: Path) -> None:
    data, expected = unpack("embedded", tmp_path)
    options = [f"{key}={value}" for key, value in (SETTINGS | {"embedded.retention": "1000y"}).items()]
    with Server(data, *(word for option in options for word in ("--set", option))) as server:
        server.start()
        with httpx.Client(base_url=server.url, timeout=60) as http:
            check_everything(http, expected)
            cursor = http.get("/v1/topics/orders/consumers/reader").json()["cursor"]
            rest = http.get(f"/v1/topics/orders/records?after={cursor}").json()["records"]
            assert [record["payload"] for record in rest] == ["now 2"]
            change_something(http, expected)
        assert server.stop() == 0, server.log
        server.start()  # and what this version wrote beside it
        assert server.stop() == 0, server.log
    verified = run("verify", "--data", data)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_kafka_log_and_the_folder_of_a_node(tmp_path: Path) -> None:
    need_servers()
    folder, expected = unpack("cluster", tmp_path)
    settings = SETTINGS | {"kafka.retention": "1000y"}
    cluster = LocalCluster(folder, brokers=1, zookeepers=1, nodes=2, proxies=1, settings=settings)
    with cluster:
        old, new = cluster.nodes
        with httpx.Client(base_url=cluster.proxies[0].url, timeout=120) as http:
            check_everything(http, expected)

            def is_fit() -> bool:
                nodes = {node["name"]: node for node in http.get("/v1/cluster").json()["nodes"]}
                return nodes[new.name]["state"] == "ready" and not nodes[new.name].get("unfit")

            def is_master_of_all() -> bool:
                return all(shard["master"] == new.name for shard in http.get("/v1/cluster").json()["shards"])

            wait_for(is_fit, "what the other node alone has, such as the imported file", PROCESS_S)
            old.process.kill()
            try:
                wait_for(is_master_of_all, "the node that began with the log alone", PROCESS_S)
            except AssertionError:
                print(http.get("/v1/cluster").text, new.process.last_words(100), sep="\n")
                raise
            check_everything(http, expected)
            change_something(http, expected)
        assert new.process.running
