"""The image without Docker: each kind of process starts by its environment, and its health check asks that process."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from duemq.dev.kafka.kafka import KafkaServers
from duemq.dev.servers.zookeeper import ZooKeeperServers
from tests.e2e.server import BIN, environment, free_port, wait_for
from tests.support.patience import PROCESS_S

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PORTS = {"serve": "8787", "proxy": "8787", "node": "8788", "relay": "8789"}


def line(word: str) -> str:
    """What stands behind the last `word` of the Dockerfile that begins a line."""
    return str(re.findall(rf"^{word} (.*)$", DOCKERFILE, re.MULTILINE)[-1])


def settings_of_image() -> dict[str, str]:
    return dict(word.split("=", 1) for word in line("ENV").split())


def test_the_image_exposes_the_ports_of_all_kinds_and_has_the_extras_of_servers() -> None:
    assert set(line("EXPOSE").split()) == set(PORTS.values())
    listens = {value.rpartition(":")[2] for name, value in settings_of_image().items() if name.endswith("LISTEN")}
    assert listens == set(PORTS.values())
    extras = re.search(r"pip install '\.\[(.*)\]'", DOCKERFILE)
    assert extras
    assert set(extras[1].split(",")) == {
        "server", "login", "otel", "objectstore", "http", "rabbitmq", "nats", "redis", "rocketmq",
    }  # fmt: skip


def test_compose_has_each_kind_of_process_of_a_cluster() -> None:
    started = re.findall(r"^    command: \[(\w+)", (ROOT / "compose.yaml").read_text(), re.MULTILINE)
    assert set(started) == {"node", "proxy", "relay"}


@contextmanager
def container(kind: str, folder: Path, further: dict[str, str]) -> Iterator[dict[str, str]]:
    """A process of this kind by the environment of the image, with ports that are free here. Gives its environment."""
    variables = environment() | settings_of_image() | {"DUEMQ_DATA": str(folder / "data")} | further
    for name in [name for name in variables if name.startswith("DUEMQ_") and name.endswith("LISTEN")]:
        variables[name] = f"{variables[name].rpartition(':')[0]}:{free_port()}"
    folder.mkdir()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [BIN / "duemq", kind], env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_for(
            lambda: process.poll() is not None or health_check(variables) == 0, f"the {kind} to be healthy", PROCESS_S
        )
        assert process.poll() is None, (folder / "log").read_text()
        if kind in ("serve", "proxy"):
            wait_for(lambda: "/console/)" in (folder / "log").read_text(), "the log to name the console", PROCESS_S)
        yield variables
    finally:
        process.terminate()
        process.wait(PROCESS_S)


def health_check(variables: dict[str, str]) -> int:
    """The exit code of the image's HEALTHCHECK."""
    command = re.search(r"CMD (\[.*\])", line("HEALTHCHECK"))
    assert command
    words = json.loads(command[1])
    search = f"{BIN}:{os.environ['PATH']}"
    return subprocess.run(words, env=variables | {"PATH": search}, capture_output=True).returncode


@pytest.mark.smoke
def test_each_kind_of_process_is_healthy_by_the_environment_of_the_image(
    kafka: KafkaServers, zookeeper: ZooKeeperServers, tmp_path: Path
) -> None:
    further = {
        "DUEMQ_HTTP__OPEN": "true", "DUEMQ_CLUSTER": "image", "DUEMQ_KAFKA__BOOTSTRAP": kafka.bootstrap,
        "DUEMQ_ZOOKEEPER__HOSTS": zookeeper.hosts, "DUEMQ_NODE__ADVERTISE": "127.0.0.1", "DUEMQ_SHARDS": "1",
    }  # fmt: skip
    with ExitStack() as running:
        for kind in ("node", "proxy", "relay"):
            variables = running.enter_context(container(kind, tmp_path / kind, further))
    assert health_check(variables) == 1, "the relay has ended"
    with container("serve", tmp_path / "serve", {"DUEMQ_HTTP__OPEN": "true"}):
        pass
