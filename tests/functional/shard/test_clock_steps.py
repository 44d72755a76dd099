"""The clock of a real process, stepped by an hour: `duemq proxy` and `duemq serve --kafka`, on real servers."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from duemq.dev.cluster.cluster import LocalCluster
from duemq.dev.kafka.kafka import KafkaServers
from tests.support.node import hooks
from tests.support.patience import WITHIN_S
from tests.support.servers.real_servers import need_servers

HOUR = 3_600_000
STEPS = pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "back"])
_URL = re.compile(r"duemq serves (http://\S+)")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def until(true: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Server:
    """What answers at a URL; `clock` has the ms by which its clock is wrong."""

    def __init__(self, url: str, clock: Path) -> None:
        self.url, self.clock = url, clock
        self.http = httpx.Client(base_url=url, timeout=300, trust_env=False)

    def close(self) -> None:
        self.http.close()

    def post(self, topic: str, **fields: object) -> httpx.Response:
        return self.http.post("/v1/messages", json={"topic": topic, "payload": "x", **fields})

    def delay_is_right(self, topic: str) -> None:
        before = now_ms()
        taken = self.post(topic, deliver_after="30m")
        assert taken.status_code == 201, taken.text
        assert before + 30 * 60_000 - 5 <= taken.json()["deliver_at_ms"] <= now_ms() + 30 * 60_000 + 1_000

    def ready(self) -> bool:
        return self.http.get("/readyz").status_code == 200

    def delivered(self, id_: str) -> bool:
        return bool(self.http.get(f"/v1/messages/{id_}").json()["status"] == "delivered")


@contextmanager
def serving(kafka: KafkaServers, folder: Path, clock: Path) -> Iterator[Server]:
    """`duemq serve --kafka`."""
    log = folder / "log"
    own = {hooks.CLOCK: str(clock), "DUEMQ_STORAGE__REFUSE_PERCENT": "100"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*hooks.PROGRAM, "serve", "--kafka", kafka.bootstrap, "--data", folder / "data", "--listen", "127.0.0.1:0"],
            stdout=out, stderr=out, env=os.environ | own,
        )  # fmt: skip
    try:
        until(lambda: _URL.search(log.read_text()) or process.poll() is not None, "it serves")
        found = _URL.search(log.read_text())
        assert found is not None, log.read_text()
        with closing(Server(found[1], clock)) as server:
            yield server
    finally:
        process.terminate()
        assert process.wait(WITHIN_S) == 0, log.read_text()


@pytest.mark.slow
@STEPS
def test_serve_on_kafka(own_kafka: KafkaServers, tmp_path: Path, step: int) -> None:
    clock = tmp_path / "clock"
    with serving(own_kafka, tmp_path, clock) as server:
        # A step that the brokers did not make is not followed.
        server.delay_is_right("orders")
        clock.write_text(str(step))
        until(lambda: server.http.get("/metrics").status_code == 200, "metrics")
        server.delay_is_right("orders")
        assert server.ready()
        clock.write_text("0")

    clock.write_text(str(step))
    with serving(own_kafka, tmp_path, clock) as server:
        # Wrong from the start: nothing is delivered, no delay is accepted.
        assert not server.ready()
        refused = server.post("orders", deliver_after="1s")
        assert (refused.status_code, refused.json()["code"]) == (503, "clock_out_of_bounds")
        due = now_ms() + 1_000
        taken = server.post("orders", deliver_at=due)
        assert taken.status_code == 201 and taken.json()["deliver_at_ms"] == due
        until(lambda: now_ms() > due + 500, "it is due")
        assert not server.ready()
        clock.write_text("0")
        until(server.ready, "it is right again")
        until(lambda: server.delivered(taken.json()["id"]), "what was due goes out")
        server.delay_is_right("orders")


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.xdist_group("servers")
def test_proxy_and_node(tmp_path: Path) -> None:
    need_servers()
    settings = {"shards": "1", "storage.refuse_percent": "100"}
    with LocalCluster(tmp_path, nodes=1, proxies=1, settings=settings) as cluster:
        (proxy,), (node,) = cluster.proxies, cluster.nodes
        clock = tmp_path / "clock"
        for step in (HOUR, -HOUR):
            proxy.process.stop()
            clock.write_text(str(step))
            proxy.program = hooks.PROGRAM
            proxy.environment[hooks.CLOCK] = str(clock)
            proxy.spawn()
            with closing(Server(proxy.url, clock)) as server:
                until(lambda server=server: _code_of(server) == "clock_out_of_bounds", "the proxy refuses")  # type: ignore[misc]
                assert not server.ready() and node.is_ready()
                taken = server.post("orders", deliver_at=now_ms() + 500)
                assert taken.status_code == 201, taken.text
                until(lambda: server.delivered(taken.json()["id"]), "the node delivers what it took")  # noqa: B023
                clock.write_text("0")
                until(server.ready, "it is right again")
                server.delay_is_right("orders")


def _code_of(server: Server) -> str:
    try:
        return str(server.post("orders", deliver_after="1s").json().get("code"))
    except httpx.TransportError:
        return "not there yet"
