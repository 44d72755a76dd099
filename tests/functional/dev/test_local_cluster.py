"""`duemq dev-cluster`, which `make cluster` and `make cluster-down` call."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from duemq.dev.servers.process import ProcessIdentity
from tests.e2e.server import BIN
from tests.support.servers.real_servers import need_servers

SMALL = ("--brokers", "1", "--zookeepers", "1", "--nodes", "1", "--proxies", "1", "--port", "0")


def command(verb: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    arguments = [str(BIN / "duemq"), "dev-cluster", verb, "--data", str(folder), *options]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=180)


def processes(folder: Path) -> dict[str, ProcessIdentity]:
    kept = json.loads((folder / "cluster.json").read_text())["processes"]
    return {name: ProcessIdentity(**identity) for name, identity in kept.items()}


@pytest.mark.slow
def test_up_is_repeatable_and_down_ends_exactly_what_it_started(tmp_path: Path) -> None:
    need_servers()
    try:
        up = command("up", tmp_path, *SMALL)
        assert up.returncode == 0, up.stderr
        first = processes(tmp_path)
        assert first.keys() == {"proxy-1", "node-1", "kafka-1", "zookeeper-1"}
        url = up.stdout.split()[1]
        sent = httpx.post(f"{url}/v1/messages", json={"topic": "t", "payload": "p", "deliver_after": "1h"})
        assert sent.status_code == 201, sent.text

        os.kill(first["node-1"].pid, signal.SIGKILL)
        assert command("up", tmp_path, *SMALL).returncode == 0
        second = processes(tmp_path)
        assert second["node-1"].lives() and second["node-1"] != first["node-1"]
        assert {name for name in first if first[name] == second[name]} == first.keys() - {"node-1"}
        listed = command("status", tmp_path, "--json")
        assert listed.returncode == 0 and json.loads(listed.stdout).keys() == second.keys()

        other = command("up", tmp_path, *SMALL, "--nodes", "2")
        assert other.returncode == 1 and "holds another cluster (brokers 1," in other.stderr
    finally:
        down = command("down", tmp_path)
    assert down.returncode == 0, down.stderr
    assert not [name for name, identity in second.items() if identity.lives()]
    assert command("status", tmp_path).returncode == 1
    assert "nothing runs" in command("down", tmp_path).stdout
