"""Names on a real server: no caller reaches a message or a cursor of another one by the name of it."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.server import Server, wait_for
from tests.e2e.test_destinations import endpoint

ROOT = "settings-secret-123456"
GUARDED = ("--set", "http.access=keys", "--set", f"http.api_keys={ROOT}")
RELAY = (*GUARDED, "--set", "relay.private_networks=127.0.0.0/8")


class Caller:
    def __init__(self, server: Server, key: str) -> None:
        self._url, self._key = server.url, {"X-API-Key": key}

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return httpx.request(method, self._url + path, json=body, headers=self._key | headers, timeout=300)

    def key(self, server: Server, name: str, scopes: list[str], *topics: str) -> tuple[Caller, str]:
        made = self.call("POST", "/v1/keys", {"name": name, "scopes": scopes, "topics": topics}).json()
        return Caller(server, made["key"]), made["id"]

    def put(self, name: str, topic: str, payload: str = "p", **headers: str) -> httpx.Response:
        message = {"topic": topic, "payload": payload, "deliver_at": "2031-05-06T07:08:09Z"}
        return self.call("PUT", f"/v1/messages/{name}", message, **headers)

    def records(self, topic: str) -> list[str]:
        answer = self.call("GET", f"/v1/topics/{topic}/records?max=1000")
        return [record["payload"] for record in answer.json().get("records", ())]


def test_names_of_a_key_for_some_topics_are_of_that_key_alone(tmp_path: Path) -> None:
    with Server(tmp_path / "data", *GUARDED) as server:
        server.start()
        root, scopes = Caller(server, ROOT), ["send", "read", "cancel"]
        (ann, ann_id), (bob, _) = root.key(server, "a", scopes, "a.*"), root.key(server, "b", scopes, "b.*")
        first = ann.put("order-17", "a.x")
        assert first.status_code == 201
        taken = {"messages": [{"name": f"invoice-{n}", "topic": "b.x", "payload": ""} for n in range(100)]}
        assert bob.call("POST", "/v1/messages:batch", taken).json()["accepted"] == 100
        assert root.put("order-17", "a.x", "of all").status_code == 201

        assert bob.put("order-17", "b.x", **{"If-None-Match": "*"}).status_code == 201, "nothing tells of the other one"
        assert ann.put("invoice-50", "a.x").status_code == 201, "no key takes the names of another one"
        assert bob.call("GET", f"/v1/messages/{first.json()['id']}").status_code == 404
        repeated = ann.put("order-17", "a.x")
        assert (repeated.status_code, repeated.json()["duplicate"]) == (200, True)
        assert ann.put("order-17", "a.x", "other").json()["code"] == "name_conflict"

        rotated = root.call("POST", f"/v1/keys/{ann_id}:rotate", {"overlap": "0s"}).json()["key"]
        again = Caller(server, rotated)
        server.kill()
        server.start()
        assert again.put("order-17", "a.x").json()["id"] == first.json()["id"]
        assert again.call("GET", "/v1/messages/order-17").json()["id"] == first.json()["id"]
        assert again.call("DELETE", "/v1/messages/order-17").json()["status"] == "cancelled"
        kept = bob.call("GET", "/v1/messages/order-17").json(), root.call("GET", "/v1/messages/order-17").json()
        assert [(one["topic"], one["status"]) for one in kept] == [("b.x", "scheduled"), ("a.x", "scheduled")]


def test_a_key_that_consumes_moves_no_cursor_of_a_destination(tmp_path: Path) -> None:
    status = [204]
    with endpoint(status) as (url, received), Server(tmp_path / "data", *RELAY) as server:
        server.start()
        root = Caller(server, ROOT)
        consumer, _ = root.key(server, "consumer", ["read", "consume"])
        cursors = "/v1/topics/invoices/consumers/destination.billing"
        declared = {"name": "billing", "url": url, "topics": ["invoices"]}
        assert root.call("POST", "/v1/destinations", declared).status_code == 201
        root.call("POST", "/v1/messages", {"topic": "invoices", "payload": "0"})
        wait_for(lambda: len(received) == 1, "the first one")
        assert root.call("POST", "/v1/destinations/billing:pause").status_code == 200
        time.sleep(1)  # in force within a second
        for number in range(1, 6):
            root.call("POST", "/v1/messages", {"topic": "invoices", "payload": f"{number}"})
        assert consumer.call("GET", cursors).status_code == 204, "a consumer of that name has no place"
        end = consumer.call("GET", "/v1/topics/invoices").json()["cursor"]
        assert consumer.call("PUT", cursors, {"cursor": end}).status_code == 204
        assert root.call("POST", "/v1/destinations/billing:resume").status_code == 200
        wait_for(lambda: len(received) == 6, "those that waited")
        start = consumer.call("GET", "/v1/topics/invoices/records?max=1").json()["cursor"]
        assert consumer.call("PUT", cursors, {"cursor": start}).status_code == 204
        assert server.stop() == 0
        server.start()
        root.call("POST", "/v1/messages", {"topic": "invoices", "payload": "6"})
        wait_for(lambda: len(received) == 7, "the message after the restart")
        # Requests for messages without a key run side by side, in any order.
        assert sorted(body for _, body in received) == [b"%d" % number for number in range(7)]


def test_a_sender_takes_no_retry_of_a_destination(tmp_path: Path) -> None:
    """The names that retries had were to be computed: all that a record of the next milliseconds could have are taken,
    by a key for another topic and by one for all."""
    status = [500]
    with endpoint(status) as (url, received), Server(tmp_path / "data", *RELAY) as server:
        server.start()
        root = Caller(server, ROOT)
        sender, _ = root.key(server, "sender", ["send"], "own.*")
        declared = {
            "name": "slow", "url": url, "topics": ["orders"], "retry": {"kind": "delays", "delays": ["1s", "1s"]},
        }  # fmt: skip
        assert root.call("POST", "/v1/destinations", declared).status_code == 201
        due = int(time.time() * 1000) + 3_000
        names = [
            f"{kind}-{hashlib.sha256(chr(0).join(place).encode()).hexdigest()[:40]}"
            for kind in ("retry", "dead")
            for ms in range(due - 20, due + 480)
            for place in [(kind, "destination.slow", "orders", "0", "0", str(ms))]
        ]
        items = [{"name": name, "topic": "own.x", "payload": "", "deliver_after": "1h"} for name in names]
        for caller in (sender, root):
            assert caller.call("POST", "/v1/messages:batch", {"messages": items}).json()["accepted"] == len(items)
        root.call("POST", "/v1/messages", {"topic": "orders", "payload": "VALUABLE", "deliver_at": due})
        wait_for(lambda: len(received) == 3, "every attempt")
        (record,) = root.call("GET", "/v1/topics/orders/records").json()["records"]
        assert due - 20 <= record["timestamp_ms"] < due + 480, "its retry had one of these names"
        wait_for(lambda: root.records("dlq.destination.slow") == ["VALUABLE"], "the dead letter")
