"""Sealed messages over HTTP: found, listed, cancelled, moved and delivered as any others, across kills."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import Server, run, wait_for

pytestmark = pytest.mark.slow

TOPIC, COUNT = "orders", 300
WINDOW_MS = 1_800_000
DELAY_FILE = ("--set", "delay_files.seal_rows=50", "--set", "delay_files.seal_windows=1")


def items(due_ms: int) -> dict[str, Any]:
    """Some share a millisecond, some are named and labelled."""
    return {
        "messages": [
            {"topic": TOPIC, "payload": f"far {n}", "deliver_at": due_ms + n // 4, "labels": [f"of-{n % 3}"]}
            for n in range(COUNT)
        ]
    }


def test_sealed_messages_are_messages(new_server: Callable[..., Server]) -> None:
    server = new_server(*DELAY_FILE).start()
    due_ms = int(time.time() * 1000) + 4 * 3_600_000
    sent = server.call("POST", "/v1/messages:batch", items(due_ms)).json()["results"]
    ids = [item["id"] for item in sent]
    folder = server.data / "shards" / "000" / "far"
    wait_for(lambda: f"sealed {COUNT} messages" in server.log, "a delay file")
    server.kill()
    server.start()

    found = server.call("GET", f"/v1/messages/{ids[7]}").json()
    assert (found["status"], found["payload"], found["deliver_at_ms"]) == ("scheduled", "far 7", due_ms + 1)
    listed = server.call("GET", f"/v1/messages?topic={TOPIC}&label=of-1&limit=1000").json()["messages"]
    assert [message["id"] for message in listed] == ids[1::3]

    assert server.call("DELETE", f"/v1/messages/{ids[0]}").json()["status"] == "cancelled"
    assert server.call("GET", f"/v1/messages/{ids[0]}").json()["status"] == "cancelled"
    assert server.call("POST", f"/v1/messages/{ids[0]}:deliver-now").status_code == 409
    assert server.call("PATCH", f"/v1/messages/{ids[1]}", {"deliver_after": "1s"}).status_code == 200
    assert server.call("POST", f"/v1/messages/{ids[2]}:deliver-now").status_code == 200
    server.kill()
    server.start()
    read = f"/v1/topics/{TOPIC}/records?max=10"
    wait_for(lambda: len(server.call("GET", read).json().get("records", ())) == 2, "both deliveries")
    records = server.call("GET", read).json()["records"]
    assert {record["headers"]["duemq-id"] for record in records} == {ids[1], ids[2]}
    left = server.call("GET", f"/v1/messages?topic={TOPIC}&limit=1000").json()["messages"]
    assert [message["id"] for message in left] == ids[3:]

    assert server.stop() == 0, server.log
    checked = run("verify", "--data", server.data)
    assert checked.returncode == 0, checked.stdout + checked.stderr

    (file,) = folder.rglob("*.parquet")
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)
    checked = run("verify", "--data", server.data, "--json")
    assert checked.returncode == 1
    assert file.name in checked.stdout

    server.start()
    assert server.call("GET", f"/v1/messages/{ids[9]}").status_code == 503
    wait_for(lambda: server.call("GET", "/readyz").json()["shards"].get("0", {}).get("state") == "stopped", "it stops")
    told = server.call("GET", "/readyz")
    assert (told.status_code, told.json()["shards"]["0"]["reason"]) == (503, "stopped")
    assert file.name not in told.text, "files are for those who may read"
    assert 'duemq_shard_stopped{shard="0"} 1.0' in server.call("GET", "/metrics").text
    (node,) = server.call("GET", "/v1/cluster").json()["nodes"]
    assert node["state"] == "out" and file.name in node["reason"]
    assert server.call("GET", f"/v1/messages/{ids[1]}").status_code == 503, "a stopped shard is not believed"
    assert server.call("DELETE", f"/v1/messages/{ids[9]}").status_code == 503
    late = {"topic": TOPIC, "payload": "late", "deliver_at": due_ms}
    accepted = server.call("POST", "/v1/messages", late)
    assert accepted.status_code == 201, "it is in the log, and waits for the file"
    server.kill()

    content[len(content) // 3] ^= 1
    file.write_bytes(content)
    server.start()
    assert server.call("GET", f"/v1/messages/{ids[1]}").json()["status"] == "delivered"
    assert server.call("GET", f"/v1/messages/{accepted.json()['id']}").json()["status"] == "scheduled"
    assert server.call("GET", "/readyz").status_code == 200


def test_files_are_rewritten_and_vanish_with_their_messages(new_server: Callable[..., Server]) -> None:
    server = new_server(*DELAY_FILE, "--set", "delay_files.rewrite_share=0.001").start()
    due_ms = int(time.time() * 1000) + 4 * 3_600_000
    batch = {
        "messages": [
            {"topic": TOPIC, "payload": f"far {n}", "deliver_at": due_ms // WINDOW_MS * WINDOW_MS + n}
            for n in range(3_000)
        ]
    }
    ids = [item["id"] for item in server.call("POST", "/v1/messages:batch", batch).json()["results"]]
    folder = server.data / "shards" / "000" / "far"
    wait_for(lambda: "sealed 3000 messages" in server.log, "a delay file")
    assert server.call("POST", "/v1/messages:cancel", {"ids": ids[:1_200]}).json()
    wait_for(lambda: "rewrote 1800 messages" in server.log, "a smaller one")
    server.kill()
    server.start()
    (file,) = folder.rglob("*.parquet")
    assert file.name == "000002.parquet"
    metrics = server.call("GET", "/metrics").text
    assert 'duemq_sealed_messages{shard="0"} 1800.0' in metrics and 'duemq_delay_files{shard="0"} 1.0' in metrics
    assert server.call("POST", "/v1/messages:cancel", {"ids": ids[1_200:]}).json()
    wait_for(lambda: not list(folder.rglob("*.parquet")), "no file without messages")
    assert server.stop() == 0, server.log
    checked = run("verify", "--data", server.data)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_kills_while_windows_are_sealed_and_rewritten_lose_nothing(new_server: Callable[..., Server]) -> None:
    server = new_server(*DELAY_FILE, "--set", "delay_files.rewrite_share=0.001").start()
    start = (int(time.time() * 1000) // WINDOW_MS + 6) * WINDOW_MS
    batch = {
        "messages": [
            {"topic": TOPIC, "payload": "x" * 150, "deliver_at": start + n % 6 * WINDOW_MS + n} for n in range(9_000)
        ]
    }
    ids = [item["id"] for item in server.call("POST", "/v1/messages:batch", batch).json()["results"]]
    kept = ids
    for seconds in (11.0, 1.5, 2.0, 2.5, 1.0):  # whatever it does then: windows are sealed 10 s after they grew
        time.sleep(seconds)
        gone, kept = kept[:1_500], kept[1_500:]
        counts = server.call("POST", "/v1/messages:cancel", {"ids": gone}).json()["counts"]
        assert counts["cancelled"] + counts["pending"] == 1_500
        server.kill()
        server.start()
    wait_for(lambda: server.call("GET", "/v1/cluster").json()["shards"][0]["pending"] == len(kept), "all cancels")
    assert server.stop() == 0, server.log
    checked = run("verify", "--data", server.data)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_what_was_cancelled_in_a_file_is_told_whether_or_not_it_was_read_from_there(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    """It is read ten seconds later: across kills, in a backup, and after the file is gone."""
    server = new_server(*DELAY_FILE).start()
    due_ms = (int(time.time() * 1000) // WINDOW_MS + 8) * WINDOW_MS
    batch = {
        "messages": [
            {"topic": TOPIC, "payload": "x", "deliver_at": due_ms + n, "key": f"k{n}", "name": f"m-{n}",
             "headers": {"a": f"{n}"}, "labels": ["b", f"l{n}"]}
            for n in range(COUNT)
        ]
    }  # fmt: skip
    ids = [item["id"] for item in server.call("POST", "/v1/messages:batch", batch).json()["results"]]
    wait_for(lambda: f"sealed {COUNT} messages" in server.log, "a delay file")
    before = [server.call("GET", f"/v1/messages/{id_}").json() for id_ in ids[:50]]
    answers = server.call(
        "POST", "/v1/messages:cancel", {"ids": [*ids[:40], *(f"m-{n}" for n in range(40, 50))]}
    ).json()
    assert [answer["status"] for answer in answers["results"]] == ["cancelled"] * 50
    told = [server.call("GET", f"/v1/messages/{id_}").json() for id_ in ids[:50]]
    for was, now in zip(before, told, strict=True):
        was.pop("payload")
        when = {name: now[name] for name in ("cancelled_at", "cancelled_at_ms")}
        change = {"change": "cancelled", "at": now["cancelled_at"], "at_ms": now["cancelled_at_ms"]}
        assert now == was | {"status": "cancelled", "changes": [change]} | when
    assert run("backup", tmp_path / "backups", "--data", server.data).returncode == 0
    server.kill()
    server.start()
    assert [server.call("GET", f"/v1/messages/{id_}").json() for id_ in ids[:50]] == told
    assert server.call("POST", "/v1/messages:cancel", {"ids": ids}).json()["counts"]["cancelled"] == COUNT
    server.kill()
    checked = run("verify", "--data", server.data)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    server.start()
    wait_for(lambda: not list((server.data / "shards" / "000" / "far").rglob("*.parquet")), "no file without messages")
    assert [server.call("GET", f"/v1/messages/{id_}").json() for id_ in ids[:50]] == told
    assert server.stop() == 0, server.log

    (backup,) = (tmp_path / "backups").iterdir()
    restored = run("restore", backup, "--data", tmp_path / "restored")
    assert restored.returncode == 0, restored.stdout + restored.stderr
    checked = run("verify", "--data", tmp_path / "restored")
    assert checked.returncode == 0, checked.stdout + checked.stderr
