"""The steps of `docs/guides/migrate-rocketmq.md`, copied out of it and followed; consumers are RocketMQ's own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from duemq.client import Client
from tests.e2e.server import BIN, Server, environment
from tests.support.patience import SERVERS_S
from tests.support.rocketmq.client import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    InternalErrorException,
    Message,
    SimpleConsumer,
)
from tests.support.rocketmq.server import RocketMQServer

pytestmark = [pytest.mark.slow]

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "migrate-rocketmq.md").read_text()
BODY = bytes(range(256))
LEVELS_MS = {1: 1_000, 2: 5_000, 3: 10_000}


def block(language: str, containing: str) -> str:
    blocks: list[str] = re.findall(rf"^ *```{language}\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    (found,) = [each for each in blocks if containing in each]
    return re.sub(r"^   ", "", found, flags=re.MULTILINE)


def run(command: list[str], server: Server) -> str:
    settings = environment() | {"DUEMQ_URL": server.url, "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def received(rocketmq: RocketMQServer, topic: str, tag: str, count: int) -> dict[str, tuple[float, Message]]:
    """Key -> when a consumer of the tag got the message, epoch ms, and the message."""
    configuration = ClientConfiguration(rocketmq.endpoint, Credentials(), request_timeout=10)
    consumer = SimpleConsumer(configuration, "billing", {topic: FilterExpression(tag)}, await_duration=5)
    consumer.startup()
    found: dict[str, tuple[float, Message]] = {}
    deadline = time.monotonic() + SERVERS_S
    try:
        while len(found) < count and time.monotonic() < deadline:
            try:
                messages = consumer.receive(32, 60)
            except InternalErrorException:  # until the proxy has the settings, which the client sends apart
                continue
            now = time.time() * 1000
            for message in messages:
                consumer.ack(message)
                found[message.properties["duemq-key"]] = now, message
    finally:
        consumer.shutdown()
    return found


def test_the_steps_of_the_page(rocketmq: RocketMQServer, tmp_path: Path) -> None:
    for topic in ("orders", "orders_eu", "destination_shop"):
        rocketmq.create_topic(topic)
    rocketmq.create_group("billing")
    with Server(tmp_path / "data", "--set", "relay.private_networks=127.0.0.0/8") as server:
        server.start()
        port = rocketmq.endpoint.rpartition(":")[2]
        declare = block("sh", "duemq destination add").replace("localhost:8081", f"localhost:{port}")
        run(["bash", "-ec", declare.replace("--topic orders", "--topic orders --topic orders.eu")], server)
        assert "accepted" in run(["bash", "-ec", "duemq destination test shop"], server)

        with Client(server.url) as duemq:
            began = {}
            for level in LEVELS_MS:
                began[level] = time.time() * 1000
                duemq.send(
                    "orders.eu", BODY, key=f"level-{level}", labels=["paid", "large"], delay_level=level,
                    headers={"traceparent": "00-abc", "Größe": "ü"},
                )  # fmt: skip
            duemq.send("orders.eu", BODY, key="refunded", labels=["refunded"], delay_level=1)
        answer = json.loads(
            run(["bash", "-ec", block("sh", "curl").replace("http://127.0.0.1:8787", server.url)], server)
        )
        python = block("python", "delay_level").replace('key="4711"', 'key="of the SDK"')
        run([sys.executable, "-c", f"body = {BODY!r}\n{python}"], server)

        by_level = received(rocketmq, "orders_eu", "paid", 3)
        of_page = received(rocketmq, "orders", "paid", 2)

    assert by_level.keys() == {f"level-{level}" for level in LEVELS_MS}
    for level, delay_ms in LEVELS_MS.items():
        at, message = by_level[f"level-{level}"]
        due = int(message.properties["duemq-due"])
        assert 0 <= due - delay_ms - began[level] < 5_000, "the level counts from the send"
        assert at >= due
        assert (message.body, message.tag) == (BODY, "paid")
        assert message.keys == {message.message_id, f"level-{level}"}
        assert message.properties["duemq-id"] == message.message_id
        assert message.properties["traceparent"] == "00-abc"
        assert message.properties["Größe"] == "ü"

    assert of_page.keys() == {"4711", "of the SDK"}
    _, message = of_page["4711"]
    assert (message.body, message.tag, message.message_id) == ("…".encode(), "paid", answer["id"])
    assert message.keys == {answer["id"], "4711"}
    assert of_page["of the SDK"][1].body == BODY
    assert [one.body for one in rocketmq.stored("destination_shop")] != []
