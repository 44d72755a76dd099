"""What one caller can take of a real server: places without a key, and memory with a key for one topic."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.abuse.server import AbusedServer

MIB = 1 << 20
ROOT = "a-key-of-the-settings"
HALF_SENT = (
    b"POST /console/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 4096\r\n\r\nk"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AbusedServer]:
    settings = {"DUEMQ_HTTP__ACCESS": "keys", "DUEMQ_HTTP__API_KEYS": ROOT, "DUEMQ_STORAGE__WRITE_BUFFER_BYTES": "8MiB"}
    with AbusedServer(tmp_path_factory.mktemp("costs"), 12_000, settings) as server:
        yield server


@pytest.fixture(scope="module")
def tenant(server: AbusedServer) -> Iterator[httpx.Client]:
    """A client with a key for the topics `a.*`."""
    with httpx.Client(base_url=server.url, headers=bearer(ROOT)) as root:
        body = {"name": "tenant", "scopes": ["send", "read", "cancel", "operate"], "topics": ["a.*"]}
        key = root.post("/v1/keys", json=body).raise_for_status().json()["key"]
    with httpx.Client(base_url=server.url, headers=bearer(key), timeout=60) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.slow
def test_thousands_of_half_sent_logins_stop_nobody_with_a_key(server: AbusedServer, tenant: httpx.Client) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    crowd = list[socket.socket]()
    try:
        for _ in range(4_200):
            crowd.append(socket.create_connection((host, int(port))))
            crowd[-1].sendall(HALF_SENT)
        for payload in ("p", "p" * 300_000):
            answer = tenant.post("/v1/messages", json={"topic": "a.x", "payload": payload})
            assert answer.status_code == 201, answer.text
        assert tenant.get("/v1/topics/a.x/records").status_code == 200
        assert httpx.get(f"{server.url}/livez").status_code == 200
    finally:
        for one in crowd:
            one.close()


def memory(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


def cost_of(pid: int, call: Callable[[], httpx.Response]) -> int:
    """By how many bytes the memory of a process exceeded what it had, at its highest, during a call."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # VmHWM begins at what there is now
    before = memory(pid, "VmRSS")
    answer = call()
    assert answer.status_code < 500, answer.text
    return memory(pid, "VmHWM") - before


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the highest use cannot be reset")
def test_one_call_of_a_key_for_one_topic_takes_less_than_64_mib(server: AbusedServer, tenant: httpx.Client) -> None:
    large = {"topic": "a.big", "payload": "p" * 1_000_000, "deliver_after": "1h"}
    id_ = tenant.post("/v1/messages", json=large).raise_for_status().json()["id"]
    other = httpx.post(f"{server.url}/v1/messages", json=large | {"topic": "c.big"}, headers=bearer(ROOT)).json()["id"]
    for _ in range(20):
        tenant.post("/v1/messages", json={"topic": "a.now", "payload": "p" * 1_000_000}).raise_for_status()
    filtered = {"filter": {"topic": "a.big"}}
    calls: dict[str, tuple[str, str, Any]] = {
        "look up": ("GET", f"/v1/messages/{id_}", None),
        "cancel others'": ("POST", "/v1/messages:cancel", {"ids": [other] * 10_000}),
        "move one": ("POST", "/v1/messages:move", {"moves": [{"id": id_, "deliver_after": "2h"}] * 10_000}),
        "names": ("POST", "/v1/messages:cancel", {"ids": [f"n{number}" for number in range(10_000)]}),
        "list": ("GET", "/v1/messages?topic=a.big&limit=1000", None),
        "dead letters": ("GET", "/v1/dlq?limit=1000", None),
        "records": ("GET", "/v1/topics/a.now/records?max=1000", None),
        "count": ("POST", "/v1/jobs", {"kind": "cancel", "dry_run": True, **filtered}),
        "job": ("POST", "/v1/jobs", {"kind": "cancel", "filter": {"topic": "a.none"}}),
        "small batch": ("POST", "/v1/messages:batch", {"messages": [large | {"payload": "p" * 100}] * 10_000}),
        "too large a batch": ("POST", "/v1/messages:batch", {"messages": [large] * 31}),
        "batch for others": ("POST", "/v1/messages:batch", {"messages": [large | {"topic": "b.x"}] * 15}),
        "large batch": ("POST", "/v1/messages:batch", {"messages": [large] * 15}),
        "cancel all": ("POST", "/v1/messages:cancel", filtered),
    }
    costs = dict[str, int]()
    for name, (method, path, body) in calls.items():
        content = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": "application/json"} if content else {}
        call = partial(tenant.request, method, path, content=content, headers=headers)
        costs[name] = cost_of(server.process.pid, call)
        wait_until_applied(tenant)
    assert {name: cost >> 20 for name, cost in costs.items() if cost > 64 * MIB} == {}


def wait_until_applied(client: httpx.Client) -> None:
    """A look-up is answered once all commands before it are applied."""
    for _ in range(60):
        if client.get("/v1/messages?topic=a.none").status_code == 200:
            return
    raise AssertionError("the shard does not catch up")
