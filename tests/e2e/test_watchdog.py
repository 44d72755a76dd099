"""systemd is told that a real server works, for as long as it does."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from duemq.dev.cluster.cluster import LocalCluster
from tests.e2e.server import Server, wait_for
from tests.support.node.hooks import HANG, PROGRAM
from tests.support.servers.real_servers import need_servers

WATCHDOG_S = 3.0
STUCK_S = 1.0
_LONG_S = 3 * WATCHDOG_S


class Systemd:
    """The socket that services tell."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self.environment = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": str(int(WATCHDOG_S * 1_000_000))}
        self.lines: list[str] = []

    def look(self) -> list[str]:
        """What was told since the last look."""
        told: list[str] = []
        while True:
            try:
                told += self._socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                self.lines += told
                return told

    def until(self, line: str) -> None:
        wait_for(lambda: self.look() and line in self.lines, line)

    def pings(self, seconds: float) -> int:
        """How many come in this time."""
        self.look()
        time.sleep(seconds)
        return self.look().count("WATCHDOG=1")

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    # The path of a socket has at most 107 bytes.
    path = Path(os.path.relpath(tmp_path)) / "notify" if len(str(tmp_path)) > 90 else tmp_path / "notify"
    server = Systemd(path)
    yield server
    server.close()


@pytest.fixture
def server(new_server: Callable[..., Server], systemd: Systemd, tmp_path: Path) -> Server:
    made = new_server("--set", f"delivery.stuck_after_s={STUCK_S}")
    made.command = list(PROGRAM)
    made.environment |= systemd.environment | {HANG: str(tmp_path / "hang")}
    return made.start()


def test_a_server_is_ready_pings_while_it_is_idle_and_stops(server: Server, systemd: Systemd) -> None:
    systemd.until("READY=1")
    assert systemd.pings(_LONG_S) >= 3
    server.send("t", deliver_after="1s")
    assert systemd.pings(WATCHDOG_S) >= 1
    assert server.stop() == 0
    systemd.until("STOPPING=1")


def test_a_stuck_shard_stops_the_pings_until_it_goes_on(server: Server, systemd: Systemd, tmp_path: Path) -> None:
    systemd.until("WATCHDOG=1")
    (tmp_path / "hang").write_text("shard")
    wait_for(lambda: server.call("GET", "/livez").status_code == 503, "the shard to be called stuck")
    stuck = server.call("GET", "/livez").json()
    assert (stuck["code"], list(stuck["shards"])) == ("stuck", ["0"])
    assert server.call("GET", "/readyz").json()["shards"]["0"]["reason"] == "stuck"
    time.sleep(WATCHDOG_S)
    assert systemd.pings(_LONG_S) == 0
    assert "shard 0 has been stuck" in server.log
    (tmp_path / "hang").unlink()
    wait_for(lambda: server.call("GET", "/livez").status_code == 200, "the shard to go on")
    assert systemd.pings(_LONG_S) >= 3


def test_a_blocked_event_loop_stops_the_pings(server: Server, systemd: Systemd, tmp_path: Path) -> None:
    systemd.until("WATCHDOG=1")
    (tmp_path / "hang").write_text("loop")
    time.sleep(WATCHDOG_S)
    assert systemd.pings(_LONG_S) == 0


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.xdist_group("servers")
def test_a_node_without_brokers_and_zookeeper_is_not_stuck(systemd: Systemd, tmp_path: Path) -> None:
    need_servers()
    settings = {
        "shards": "2", "delivery.stuck_after_s": "5", "kafka.transaction_timeout_ms": "2000",
        "kafka.request_timeout_ms": "1000", "storage.refuse_percent": "100",
    }  # fmt: skip
    with LocalCluster(tmp_path / "cluster", nodes=1, proxies=1, settings=settings) as cluster:
        (node,) = cluster.nodes
        node.process.stop()
        node.environment |= systemd.environment
        node.start()
        systemd.until("READY=1")
        for away in (cluster.kafka, cluster.zookeeper):
            away.kill()
            end = time.monotonic() + 20
            while time.monotonic() < end:
                assert systemd.pings(WATCHDOG_S) >= 1, node.process.last_words()
        assert node.process.running
        cluster.zookeeper.start()
        cluster.kafka.start()
        node.wait_until_ready()
        assert systemd.pings(_LONG_S) >= 3
