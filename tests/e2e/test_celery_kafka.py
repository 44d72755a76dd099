"""Celery tasks that a duemq on a real Kafka holds."""

from __future__ import annotations

import asyncio
import gc
import secrets
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from duemq.dev.kafka.kafka import KafkaServers
from tests.e2e.celery_site import Site

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("not_for_ever"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]


async def create(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        answer = await admin.create_topics([NewTopic(topic, 2, 1)])
        assert [error[1] for error in answer.topic_errors] == [0]
    finally:
        await admin.close()


def test_tasks_retries_and_revokes(kafka: KafkaServers, tmp_path: Path) -> None:
    topic = f"celery-{secrets.token_hex(4)}"
    asyncio.run(create(kafka.bootstrap, topic))
    with Site(tmp_path, duemq=("--kafka", kafka.bootstrap), topic=topic) as site:
        site.worker.start()
        tasks = site.tasks()
        due, eta = tasks.soon(2.0)
        never = tasks.note.apply_async(("never", due), countdown=3600)
        for n in range(20):
            tasks.note.apply_async((f"t{n}", due), eta=eta)
        flaky = tasks.flaky.apply_async(("flaky", due), eta=eta)
        never.revoke()
        assert never.state == "REVOKED"
        found = site.wait_for_runs(*(f"t{n}" for n in range(20)), "flaky:2", within_s=300)
        assert flaky.get(timeout=300) == "flaky"
        assert {name: len(late) for name, late in found.items()} == dict.fromkeys(
            [f"t{n}" for n in range(20)] + [f"flaky:{n}" for n in range(3)], 1
        )
        assert all(found[f"t{n}"][0] >= 0 for n in range(20))
        late, eta = tasks.soon(0.5)
        tasks.note.apply_async(("after", late), eta=eta)
        site.duemq.kill()
        site.duemq.start()
        assert site.wait_for_runs("after", within_s=300)["after"][0] >= 0
        del never, flaky
        tasks.app.duemq.close()
        tasks.app.close()
        gc.collect()
