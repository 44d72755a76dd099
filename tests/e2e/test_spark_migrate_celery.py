"""Tasks that a Celery worker holds in memory are imported from its Redis, and the relay runs them: nothing is lost."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession

from duemq.client import Client
from duemq.client.celery.envelope import VERSION, Envelope
from duemq.pipeline.migrate import CeleryOptions, divided, from_documents, reject_repeats
from duemq.pipeline.migrate.celery import ENVELOPE_VERSION
from duemq.pipeline.migrate.redis import read_redis
from tests.e2e.celery_site import Site
from tests.e2e.server import wait_for
from tests.support.spark.spark_site import spark_tests

pytestmark = [
    *spark_tests,
    pytest.mark.slow,
    pytest.mark.usefixtures("not_for_ever"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Site]:
    """A project as it was before duemq."""
    (folder := tmp_path / "plain").mkdir()
    with Site(folder, held=False) as site:
        yield site


def test_tasks_with_an_eta_move_over_to_duemq_and_run(spark: SparkSession, plain: Site, tmp_path: Path) -> None:
    plain.worker.start()
    wait_for(lambda: "ready." in plain.worker.log, "the worker is ready")
    project: Any = plain.tasks()
    due, eta = project.soon(3600)
    sent = [project.note.apply_async((f"n{at}", due), eta=eta, priority=at % 2 * 9) for at in range(6)]
    sent.append(
        project.request_of.apply_async((b"\xff",), eta=eta, serializer="pickle", expires=eta.replace(year=2099))
    )
    with redis.Redis.from_url(plain.broker.url) as broker:
        wait_for(lambda: broker.hlen("unacked") == 7, "the worker holds the tasks")
        plain.worker.kill()
        sent.append(project.note.apply_async(("waiting", due), eta=eta))
        project.note.delay("at once")
        found = read_redis(spark, plain.broker.url)
        rows = reject_repeats(from_documents(found, CeleryOptions().read, single=True)).cache()
        messages, rejects = divided(rows)
        (no_eta,) = rejects.collect()
        assert "no eta" in no_eta.reason and no_eta.source.startswith("celery[")
        broker.delete("unacked", "unacked_index", "celery", "celery\x06\x169")
        ids = {result.id for result in sent}
        sent.clear()
        gc.collect()  # results that are dropped tell the broker, so it must be there until then
        project.app.close()

    imported = messages.collect()
    assert {bytes(row.key).decode() for row in imported} == ids
    assert {row.due_ms for row in imported} == {-int(-eta.timestamp() * 1000 // 1)} and ENVELOPE_VERSION == VERSION
    envelopes = [Envelope.decode(bytes(row.payload)) for row in imported]
    assert all(one.headers["eta"] is None and one.routing_key == "celery" for one in envelopes)
    assert sorted(one.priority for one in envelopes) == [0] * 5 + [9] * 3

    (folder := tmp_path / "held").mkdir()
    with Site(folder) as site:
        site.worker.start()
        site.relay.start()
        with Client(site.duemq.url) as client:
            for row in imported:
                client.send(
                    "celery", bytes(row.payload), deliver_after="500ms", name=row.name, key=bytes(row.key).decode()
                )
        site.wait_for_runs(*(f"n{at}" for at in range(6)), "waiting", within_s=300)
        wait_for(lambda: "request_of" in site.worker.log and "succeeded" in site.worker.log, "the pickled one ran")
        assert {name: len(late) for name, late in site.ran().items()} == dict.fromkeys(
            [*(f"n{at}" for at in range(6)), "waiting"], 1
        )
