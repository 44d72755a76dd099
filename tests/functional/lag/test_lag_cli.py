"""`duemq lag` as a process, against a real Kafka."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from duemq.client.consumer.kafka.positions import metadata_of
from duemq.dev.kafka.kafka import KafkaServers
from tests.functional.lag.lag_site import LagSite
from tests.support.patience import SERVERS_S

DUEMQ = Path(sys.executable).with_name("duemq")


@pytest.fixture(scope="module")
def behind(kafka: KafkaServers) -> tuple[str, str]:
    """A group and its topic: 5 messages, 3 of them tagged; one is done, and another is in hand."""

    async def prepare() -> tuple[str, str]:
        site = LagSite(kafka.bootstrap)
        await site.start()
        topic, group = await site.topic(2), site.group()
        await site.send(topic, 2)
        await site.send(topic, 3, headers=[("tags", b"paid")])
        await site.commit(group, {(topic, 0): (1, metadata_of(2))})
        await site.stop()
        return group, topic

    return asyncio.run(prepare())


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([DUEMQ, "lag", *words], capture_output=True, text=True, timeout=SERVERS_S)


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([DUEMQ, "lag", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_table_and_json(kafka: KafkaServers, behind: tuple[str, str]) -> None:
    group, topic = behind
    ended = run(group, "--kafka", kafka.bootstrap, "--tags", "paid", "--partitions")
    assert (ended.returncode, ended.stderr) == (0, "")
    rows = [line.split("\t") for line in ended.stdout.splitlines()]
    assert [(row[0], row[1], row[2], row[3], row[4], row[6], row[8], *row[10:]) for row in rows] == [
        (group, "offline", topic, "0", "4", "1", "3", "3", ""),
        (group, "offline", topic, "1", "-", "-", "-", "-", "no commit"),
    ]
    ended = run("--kafka", kafka.bootstrap, "--topic", topic, "--json")
    (found,) = json.loads(ended.stdout)["groups"]
    assert (found["group"], found["members"], found["total"]["lag"], found["total"]["unknown"]) == (group, 0, 4, 1)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nobody"], 4, "there is no group 'nobody'"),
        (["--topic", "nowhere"], 4, "there is no topic 'nowhere'"),
        (["--tags", "a ||"], 7, "a || b"),
        (["--set", "kafka.bootstrap=127.0.0.1:1"], 8, "no Kafka broker answers at 127.0.0.1:1"),
        (["--set", "kafka.protocol=SASL_SSL"], 1, "kafka.user"),
        (["--listen", "8787"], 2, "HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--watch"], 2, "--listen"),
    ],
)
def test_what_is_wrong_is_said(kafka: KafkaServers, words: list[str], code: int, said: str) -> None:
    ended = run("--kafka", kafka.bootstrap, *words) if "kafka.bootstrap" not in str(words) else run(*words)
    assert (ended.returncode, ended.stdout) == (code, ""), ended.stderr
    assert said in ended.stderr and "Traceback" not in ended.stderr


def test_brokers_have_to_be_named() -> None:
    ended = run()
    assert ended.returncode == 2 and "--kafka" in ended.stderr


def test_security_is_set_as_for_servers(kafka_secure: KafkaServers) -> None:
    login = [
        "--kafka", kafka_secure.secure_bootstrap, "--set", "kafka.protocol=SASL_SSL",
        "--set", f"kafka.user={kafka_secure.scram.name}", "--set", f"kafka.ca_file={kafka_secure.ca_file}",
    ]  # fmt: skip
    ended = run(*login, "--set", f"kafka.password={kafka_secure.scram.password}", "--json")
    assert (ended.returncode, json.loads(ended.stdout)["groups"], ended.stderr) == (0, [], "")
    ended = run(*login, "--set", "kafka.password=wrong")
    assert ended.returncode == 1 and "refused kafka.user and kafka.password" in ended.stderr
    assert "wrong" not in ended.stderr.replace("wrong password", "")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_watching_ends_with_a_signal(kafka: KafkaServers, behind: tuple[str, str], how: signal.Signals) -> None:
    with started(behind[0], "--kafka", kafka.bootstrap, "--watch", "--every", "0.1", "--json") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert [json.loads(line)["groups"][0]["total"]["lag"] for line in lines] == [4, 4, 4]
        process.send_signal(how)
        _, err = process.communicate(timeout=SERVERS_S)
        assert (process.returncode, err) == (0, "")


def test_metrics_are_served(kafka: KafkaServers, behind: tuple[str, str]) -> None:
    group, topic = behind
    labels = f'{{group="{group}",partition="0",retry="false",topic="{topic}"}}'
    with started("--kafka", kafka.bootstrap, "--listen", "127.0.0.1:0", "--every", "0.1") as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        wanted = f"duemq_group_lag_messages{labels} 4.0"
        deadline = time.monotonic() + SERVERS_S
        while wanted not in (text := httpx.get(url).text):
            assert time.monotonic() < deadline, text
            time.sleep(0.05)
        assert f"duemq_group_inflight_messages{labels} 1.0" in text
        assert "\nduemq_lag_up 1.0\n" in text
        process.terminate()
        _, err = process.communicate(timeout=SERVERS_S)
        assert (process.returncode, err) == (0, "")


def test_a_port_that_is_taken_is_named(kafka: KafkaServers) -> None:
    with started("--kafka", kafka.bootstrap, "--listen", "127.0.0.1:0") as process:
        assert process.stdout is not None
        port = process.stdout.readline().split(":")[-1].split("/")[0]
        ended = run("--kafka", kafka.bootstrap, "--listen", f"127.0.0.1:{port}")
        assert (ended.returncode, ended.stderr) == (1, f"duemq: --listen 127.0.0.1:{port}: Address already in use\n")


def test_metrics_say_when_kafka_is_away() -> None:
    with started("--kafka", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--every", "0.1") as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        deadline = time.monotonic() + SERVERS_S
        while "\nduemq_lag_read_errors_total 0.0\n" in (text := httpx.get(url).text):
            assert time.monotonic() < deadline, text
            time.sleep(0.05)
        assert "\nduemq_lag_up 0.0\n" in text and process.poll() is None


def test_the_example_says_what_its_page_says(kafka: KafkaServers) -> None:
    root = Path(__file__).parents[3]
    words = ["--bootstrap", kafka.bootstrap, "--topic", "lag-example", "--group", "lag-example-group"]
    ended = subprocess.run(
        [sys.executable, root / "examples" / "lag.py", *words], capture_output=True, text=True, timeout=SERVERS_S
    )
    assert ended.returncode == 0, ended.stderr
    lines = re.sub(r"[\d.]+ s old", "0.2 s old", ended.stdout.replace("lag-example-group", "billing")).splitlines()
    page = (root / "docs" / "operate" / "lag.md").read_text()
    assert len(lines) == 4 and "\n".join(f"# {line}" for line in lines) in page
