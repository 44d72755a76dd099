"""`duemq serve` on Kafka, all of duemq in one process, while its clock is an hour wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from duemq.dev.cluster.duemq_process import DuemqProcess
from duemq.dev.kafka.kafka import KafkaServers
from duemq.dev.servers.ports import free_port, is_open
from duemq.dev.servers.process import wait_for
from tests.chaos.faults.clocks import HOUR_MS
from tests.chaos.topics import committed
from tests.e2e.load import now_ms
from tests.support.node import hooks

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

_TOPIC = "alone"
_WITHIN_S = 300.0


class Alone:
    """A server whose clock can be set, and what it delivers."""

    def __init__(self, folder: Path, kafka: KafkaServers) -> None:
        self.clock, self._bootstrap = folder / "clock", kafka.bootstrap
        settings = {"bus": "kafka", "kafka.bootstrap": kafka.bootstrap}
        environment = {hooks.CLOCK: str(self.clock)}
        self.process = DuemqProcess("serve", "alone", free_port(), folder, settings, environment)
        self.process.program = hooks.PROGRAM

    def send(self, payload: str, **when: Any) -> httpx.Response:
        body = {"topic": _TOPIC, "payload": payload, **when}
        return httpx.post(f"{self.process.url}/v1/messages", json=body, timeout=300, trust_env=False)

    def delivered(self) -> dict[str, int]:
        """When, by payload; each once."""
        records = asyncio.run(committed(self._bootstrap, _TOPIC))
        found = {record["payload"]: record["timestamp_ms"] for record in records}
        assert len(found) == len(records), "delivered twice"
        return found

    def wait_for(self, payload: str) -> None:
        wait_for(lambda: payload in self.delivered(), f"{payload} to be delivered", _WITHIN_S)


@pytest.fixture
def alone(own_kafka: KafkaServers, tmp_path: Path) -> Iterator[Alone]:
    alone = Alone(tmp_path, own_kafka)
    alone.process.start()
    yield alone
    alone.process.process.kill()


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS], ids=["ahead", "back"])
def test_clock_is_stepped_by_an_hour(alone: Alone, step_ms: int) -> None:
    due = now_ms() + 3_000
    assert alone.send("before the step", deliver_at=due).status_code == 201
    alone.clock.write_text(f"{step_ms}")
    alone.wait_for("before the step")
    assert alone.delivered()["before the step"] >= due

    # Started with the wrong clock: it takes what has an absolute time, and delivers nothing of it.
    alone.process.process.stop()
    alone.process.spawn()
    alone.process.process.until(lambda: is_open(alone.process.port), _WITHIN_S)
    soon, later = now_ms() + 2_000, now_ms() + HOUR_MS // 2
    assert alone.send("soon", deliver_at=soon).status_code in (201, 503)
    assert alone.send("later", deliver_at=later).status_code in (201, 503)
    before = now_ms()
    relative = alone.send("relative", deliver_after="30m")
    if relative.status_code == 201:
        assert abs(relative.json()["deliver_at_ms"] - before - HOUR_MS // 2) < 10_000, relative.text
    assert not alone.process.is_ready(), "ready with a clock that is an hour wrong"

    alone.clock.write_text("0")
    alone.process.wait_until_ready()
    assert alone.send("right again", deliver_after="100ms").status_code == 201
    alone.wait_for("right again")
    assert alone.delivered().keys() <= {"before the step", "soon", "right again"}, "early"
    assert alone.delivered().get("soon", soon) >= soon, "early"
