"""Tasks that a Celery worker holds in memory are imported from its Redis, and the relay runs them: nothing is lost."""

from __future__ import annotations

import base64
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import orjson
import pytest
import redis

from duemq.client import Client
from duemq.relay.held_task import celery_task
from tests.e2e.celery_site import Site
from tests.e2e.server import environment, wait_for
from tests.support.examples import EXAMPLES, example
from tests.support.outlets.site import out_message
from tests.support.patience import PROCESS_S

pytestmark = [
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


def test_tasks_with_an_eta_move_over_to_duemq_and_run(plain: Site, tmp_path: Path) -> None:
    plain.worker.start()
    wait_for(lambda: "ready." in plain.worker.log, "the worker is ready", PROCESS_S)
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
        program = [sys.executable, str(EXAMPLES / "from_celery.py"), plain.broker.url]
        subprocess.run(program, check=True, cwd=tmp_path, env=environment())
        imported, (no_eta,) = (
            [orjson.loads(line) for line in (tmp_path / name).read_text().splitlines()]
            for name in ("pending.jsonl", "pending-rejects.jsonl")
        )
        assert "no eta" in no_eta["reason"] and no_eta["source"].startswith("celery[")
        broker.delete("unacked", "unacked_index", "celery", "celery\x06\x169")
        ids = {result.id for result in sent}
        sent.clear()
        gc.collect()  # results that are dropped tell the broker, so it must be there until then
        project.app.close()

    assert {row["key"] for row in imported} == ids
    assert {row["due_ms"] for row in imported} == {-int(-eta.timestamp() * 1000 // 1)}
    payloads = [base64.b64decode(row["payload"]) for row in imported]
    tasks = [celery_task(out_message(payload=payload)) for payload in payloads]
    assert all(one.headers["eta"] is None and one.routing_key == "celery" for one in tasks)
    assert sorted(one.priority for one in tasks) == [0] * 5 + [9] * 3

    (folder := tmp_path / "held").mkdir()
    with Site(folder) as site:
        site.worker.start()
        with Client(site.duemq.url) as client:
            for row, payload in zip(imported, payloads, strict=True):
                client.send("celery", payload, deliver_after="500ms", name=row["name"], key=row["key"])
        site.wait_for_runs(*(f"n{at}" for at in range(6)), "waiting", within_s=300)
        wait_for(lambda: "request_of" in site.worker.log and "succeeded" in site.worker.log, "the pickled one ran")
        assert {name: len(late) for name, late in site.ran().items()} == dict.fromkeys(
            [*(f"n{at}" for at in range(6)), "waiting"], 1
        )


def test_a_redis_is_read_whole(redis_url: str) -> None:
    read_redis, prefix = example("from_celery").read_redis, f"{token_hex(4)}:"
    with redis.Redis.from_url(redis_url) as connection:
        connection.hset(f"{prefix}unacked", mapping={f"tag{at}": orjson.dumps(["m", "", at]) for at in range(1500)})
        connection.rpush(f"{prefix}mail", *(f"m{at}" for at in range(1100)))
        connection.rpush(f"{prefix}mail\x06\x163", "urgent")
        connection.rpush(f"{prefix}celery", "other")
        found = dict(read_redis(redis_url, ["mail"], prefix))
        assert len(found) == 1500 + 1101
        assert found[f"{prefix}unacked[tag7]"] == '["m","",7]' and found[f"{prefix}mail[1099]"] == "m1099"
        assert found[f"{prefix}mail priority 3[0]"] == "urgent"
        assert list(read_redis(redis_url, ["none"], "none:")) == []
