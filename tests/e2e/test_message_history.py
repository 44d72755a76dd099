"""What became of a message, and who did it: two keys on a real server, a kill, and a backup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tests.e2e.server import Server, run, wait_for


def test_a_message_tells_who_moved_and_who_cancelled_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server(data, "--set", "http.access=keys", "--set", "delay_files.seal_rows=5") as server:
        server.start()
        made = run("keys", "create", "ops", "--role", "admin", "--yes", "--data", data, url=server.url)
        keys = {"ops": made.stdout.strip()}

        def ask(name: str, method: str, path: str, body: object = None) -> Any:
            headers = {"X-API-Key": keys[name]}
            answer = httpx.request(method, server.url + path, headers=headers, json=body, timeout=60)
            assert answer.is_success, answer.text
            return answer.json()

        keys["shop"] = ask("ops", "POST", "/v1/keys", {"name": "shop", "role": "operator"})["key"]
        for number in range(20):  # enough for a delay file
            ask("ops", "PUT", f"/v1/messages/order-{number}", {"topic": "orders", "deliver_after": "30d"})

        def changes(ref: str) -> list[tuple[str, str | None]]:
            return [(one["change"], one.get("by")) for one in ask("ops", "GET", f"/v1/messages/{ref}")["changes"]]

        before = ask("ops", "GET", "/v1/messages/order-0")
        assert "changes" not in before
        ask("shop", "PATCH", "/v1/messages/order-0", {"deliver_after": "31d"})
        ask("ops", "PATCH", f"/v1/messages/{before['id']}", {"deliver_after": "32d"})
        ask("shop", "DELETE", f"/v1/messages/{before['id']}")
        told = ask("ops", "GET", "/v1/messages/order-0")
        first, second, cancelled = told["changes"]
        assert first["from_ms"] == before["deliver_at_ms"] and first["to_ms"] == second["from_ms"]
        assert second["to_ms"] == told["deliver_at_ms"] and cancelled["at_ms"] == told["cancelled_at_ms"]
        wait_for(lambda: "sealed " in server.log, "the delay file")
        ask("shop", "POST", "/v1/messages/order-1:deliver-now")
        ask("shop", "DELETE", "/v1/messages/order-2")
        job = ask(
            "ops", "POST", "/v1/jobs", {"kind": "cancel", "ids": [ask("ops", "GET", "/v1/messages/order-3")["id"]]}
        )
        wait_for(lambda: not ask("ops", "GET", f"/v1/jobs/{job['id']}")["active"], "the job")
        expected: dict[str, list[tuple[str, str | None]]] = {
            "order-0": [("moved", "key:shop"), ("moved", "key:ops"), ("cancelled", "key:shop")],
            "order-1": [("delivered_now", "key:shop")],
            "order-2": [("cancelled", "key:shop")],
            "order-3": [("cancelled", f"job:{job['id']}")],
        }
        assert {ref: changes(ref) for ref in expected} == expected
        server.kill()
        server.start()
        assert {ref: changes(ref) for ref in expected} == expected
        shown = run("get", "order-0", url=server.url, key=keys["ops"]).stdout.splitlines()
        assert [line.rpartition(" by ")[2] for line in shown[-3:]] == ["key:shop", "key:ops", "key:shop"]
        assert run("backup", tmp_path / "backups", "--data", data).returncode == 0
        assert server.stop() == 0

    (backup,) = (tmp_path / "backups").iterdir()
    restored = tmp_path / "restored"
    assert run("restore", backup, "--data", restored).returncode == 0
    verified = run("verify", "--data", restored)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    with Server(restored, "--set", "http.access=keys") as server:
        server.start()
        assert {ref: changes(ref) for ref in expected} == expected
