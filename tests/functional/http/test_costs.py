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

from duemq.proxy.table import ENDPOINTS
from tests.abuse.server import AbusedServer

MIB = 1 << 20
ROOT = "a-key-of-the-settings"
HALF_SENT = (
    b"POST /console/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 4096\r\n\r\nk"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AbusedServer]:
    settings = {
        "DUEMQ_HTTP__ACCESS": "keys", "DUEMQ_HTTP__API_KEYS": ROOT, "DUEMQ_STORAGE__WRITE_BUFFER_BYTES": "8MiB",
        "DUEMQ_STORAGE__CACHE_BYTES": "8MiB", "DUEMQ_INDEX__TOPICS": "*",
        "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072",  # freed memory leaves the process
    }  # fmt: skip
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


Call = tuple[str, Any]
"""The query of a call, and its body."""

PLACES = {"topic": "a.now", "consumer": "c", "group": "g", "node": "n", "name": "d", "place": "0:0"}
FULL = {"x": "p" * 1_000_000}


def heaviest(id_: str, ids: list[str], other: str) -> dict[tuple[str, str], list[Call]]:
    """The calls of an endpoint that take most; of one that is not here, one with a body of 1 MB. `id_`: of a message of
    1 MB, `ids`: of a hundred of these, `other`: of one of another topic."""
    large = {"topic": "a.big", "key": "k", "payload": "p" * 1_000_000, "deliver_after": "1h"}
    everything = {"filter": {"topic": "a.big"}}
    moves = [{"id": one, "deliver_after": "2h"} for one in ids]
    return {
        ("POST", "/v1/messages:move"): [
            ("", {"moves": moves}),
            ("", {"moves": [one | {"deliver_after": "3h"} for one in moves]}),
            ("", {"moves": [{"id": id_, "deliver_after": "2h"}] * 10_000}),
            ("", {"moves": [{"id": one, "deliver_after": "1ms"} for one in ids[:40]]}),
        ],
        ("GET", "/v1/messages"): [
            ("?topic=a.big&limit=1000", None), ("?limit=1000&status=delivered", None),
            ("?topic=a.big&key=k&order=newest&limit=1000", None), ("?topic=a.big&key=k&limit=1000", None),
        ],
        ("POST", "/v1/messages:cancel"): [
            ("", {"ids": [other] * 10_000}), ("", {"ids": [f"n{number}" for number in range(10_000)]}),
            ("", {"ids": ids[40:80]}), ("", everything),
        ],
        ("POST", "/v1/messages:batch"): [
            ("", {"messages": [large | {"payload": "p" * 100}] * 10_000}), ("", {"messages": [large] * 31}),
            ("", {"messages": [large | {"topic": "b.x"}] * 15}), ("", {"messages": [large] * 15}),
        ],
        ("POST", "/v1/messages"): [("", large), ("", large | {"deliver_after": "1ms"}), ("", FULL)],
        ("PUT", "/v1/messages/{id}"): [("", large), ("", large), ("", large | {"payload": "other"})],
        ("PATCH", "/v1/messages/{id}"): [("", {"deliver_after": "5h"})],
        ("GET", "/v1/dlq"): [("?limit=1000", None)],
        ("GET", "/v1/topics/{topic}/records"): [("?max=10000", None), ("?max=10000&wait=1s", None)],
        ("GET", "/v1/dlq/topics/{topic}"): [("?letters=all&limit=1000", None)],
        ("PUT", "/v1/topics/{topic}/consumers/{consumer}"): [("", {"cursor": "A" * 60_000}), ("", FULL)],
        ("POST", "/v1/jobs"): [
            ("", {"kind": "cancel", "dry_run": True, **everything}),
            ("", {"kind": "move", "shift": "1h", **everything}),
            ("", {"kind": "cancel", "filter": {"topic": "a.none"}}), ("", FULL),
            ("", {"kind": "redrive", "source": "a.now", "filter": {"dead_to": "2035-01-01T00:00:00Z"}}),
        ],
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the highest use cannot be reset")
def test_one_call_of_a_key_for_one_topic_takes_less_than_64_mib(server: AbusedServer, tenant: httpx.Client) -> None:
    """Of any endpoint, also of one that refuses the key. Caches and write buffers have bounds of their own."""
    large = {"topic": "a.big", "key": "k", "payload": "p" * 1_000_000, "deliver_after": "1h"}
    send = partial(tenant.post, "/v1/messages")
    ids = [send(json=large).raise_for_status().json()["id"] for _ in range(100)]
    id_ = send(json=large).raise_for_status().json()["id"]
    other = httpx.post(f"{server.url}/v1/messages", json=large | {"topic": "c.big"}, headers=bearer(ROOT)).json()["id"]
    for _ in range(20):
        send(json={"topic": "a.now", "payload": "p" * 1_000_000}).raise_for_status()
    calls = heaviest(id_, ids, other)
    endpoints = {(endpoint.method, endpoint.path): endpoint for endpoint in ENDPOINTS}
    assert calls.keys() <= endpoints.keys()
    costs = dict[str, int]()
    for method, path in dict.fromkeys([*calls, *endpoints]):
        default: list[Call] = [("", None if endpoints[method, path].body is None else FULL)]
        for number, (rest, body) in enumerate(calls.get((method, path), default)):
            place = path.format(**PLACES, id=id_ if "messages" in path else "x") + rest

            def ask(method: str = method, place: str = place, body: Any = body) -> httpx.Response:
                headers = {} if body is None else {"Content-Type": "application/json"}
                answer = tenant.request(method, place, content=body and orjson.dumps(body), headers=headers)
                wait_until_applied(tenant)
                return answer

            costs[f"{method} {path} {number}"] = cost_of(server.process.pid, ask)
    assert {name: cost >> 20 for name, cost in costs.items() if cost > 64 * MIB} == {}


def wait_until_applied(client: httpx.Client) -> None:
    """A look-up is answered once all commands before it are applied."""
    for _ in range(60):
        if client.get("/v1/messages?topic=a.none").status_code == 200:
            return
    raise AssertionError("the shard does not catch up")
