"""`duemq doctor` beside real servers, good ones and badly set ones."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from duemq.dev.kafka.kafka import KafkaServers
from duemq.dev.servers.zookeeper import ZooKeeperServers
from tests.e2e.server import Server, run


def examine(*options: object, code: int | None = None) -> list[dict[str, Any]]:
    done = run("doctor", "--json", *options)
    document: dict[str, Any] = json.loads(done.stdout)
    worst = {finding["level"] for finding in document["findings"]}
    assert done.returncode == (1 if "error" in worst else 0) and not done.stderr, done.stderr
    if code is not None:
        assert done.returncode == code, done.stdout
    findings: list[dict[str, Any]] = document["findings"]
    return findings


def details(findings: list[dict[str, Any]], subject: str, level: str) -> str:
    return "\n".join(one["detail"] for one in findings if (one["subject"], one["level"]) == (subject, level))


def test_a_running_server_is_examined_without_its_lock(shared_server: Server) -> None:
    address = shared_server.url.removeprefix("http://")
    findings = examine("--data", shared_server.data, "--listen", address, code=0)
    assert "is ready" in details(findings, "server", "ok")
    assert f"process {shared_server.process.pid}" in details(findings, "data folder", "ok")
    assert run("doctor", "--data", shared_server.data, "--listen", address).stdout.startswith("ok ")


def test_bad_settings_give_code_1_and_strict_counts_warnings(tmp_path: Path) -> None:
    findings = examine("--data", tmp_path, "--listen", "0.0.0.0:1", code=1)
    assert "http.api_keys" in details(findings, "configuration", "error")
    assert "no_such" in details(examine("--set", "no_such.key=1", code=1), "configuration", "error")
    open_to_all = ("--data", tmp_path, "--listen", "0.0.0.0:1", "--set", "http.open=true")
    examine(*open_to_all, code=0)
    assert run("doctor", "--strict", *open_to_all).returncode == 1


def test_brokers_with_a_wrong_topic(own_kafka: KafkaServers, zookeeper: ZooKeeperServers, tmp_path: Path) -> None:
    async def make() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=own_kafka.bootstrap)
        await admin.start()
        wrong = {"retention.ms": "1000", "message.timestamp.type": "LogAppendTime"}
        await admin.create_topics([NewTopic("duemq.doctor.buffer", 1, 1, topic_configs=wrong)])
        await admin.close()

    options = (
        "--as", "proxy", "--kafka", own_kafka.bootstrap, "--zookeeper", zookeeper.hosts, "--data", tmp_path,
        "--set", "cluster=doctor",
    )  # fmt: skip
    before = examine(*options, code=0)
    assert "duemq.doctor.buffer is not there" in details(before, "topics", "warning")
    assert "open for up to 60 s" in details(before, "brokers", "ok")
    assert "1 brokers answer" in details(before, "brokers", "ok")
    assert "has not been started yet" in details(before, "zookeeper", "ok")
    asyncio.run(make())
    after = examine(*options, code=1)
    assert "retention.ms is 1000" in details(after, "topics", "error")
    assert "duemq.doctor.ledger is not there" in details(after, "topics", "warning"), "it makes nothing"


@pytest.mark.parametrize("role", ["node", "proxy"])
def test_brokers_and_zookeeper_that_are_away_are_errors(role: str, tmp_path: Path) -> None:
    options = ("--as", role, "--kafka", "127.0.0.1:1", "--zookeeper", "127.0.0.1:1", "--data", tmp_path)
    findings = examine(*options, "--set", "kafka.request_timeout_ms=500", code=1)
    assert details(findings, "brokers", "error") and details(findings, "zookeeper", "error")
