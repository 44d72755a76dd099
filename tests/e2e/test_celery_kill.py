"""Celery tasks that duemq holds, while everything is killed."""

from __future__ import annotations

import gc
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.celery_memory import measure
from tests.e2e.celery_site import Site
from tests.e2e.server import wait_for
from tests.support.destinations.rabbitmq_node import RabbitMQNode

TASKS, APART_S = 400, 0.04
LOST_BY_KOMBU = 1
"""Tasks. Its Redis transport takes a task off the list with one command and notes it as unacknowledged with another:
a worker that is killed between the two loses it, with duemq or without."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("not_for_ever"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]


@pytest.mark.parametrize("make", ["valkey", pytest.param("rabbitmq", marks=pytest.mark.xdist_group("destinations"))])
def test_every_task_runs_not_early_and_no_revoked_one(
    tmp_path: Path, request: pytest.FixtureRequest, make: str
) -> None:
    """kill -9 of worker, duemq with its relay, and broker in turn, each while tasks come due."""
    rabbitmq: RabbitMQNode | None = request.getfixturevalue("own_rabbitmq") if make == "rabbitmq" else None
    with Site(tmp_path, visibility_s=3, amqp=rabbitmq.url if rabbitmq else "") as site:
        site.worker.start()
        tasks = site.tasks()
        start = tasks.soon(5.0)[0]
        with tasks.app.duemq.batch():
            sent = [
                tasks.note.apply_async((f"t{n}", due), eta=tasks.at(due), ignore_result=True)
                for n, due in ((n, start + n * APART_S) for n in range(TASKS))
            ]
        tasks.app.control.revoke([result.id for result in sent[3::10]])
        revoked = {f"t{n}" for n, result in enumerate(sent) if result.state == "REVOKED"}
        ids = {f"t{n}": result.id for n, result in enumerate(sent)}
        del sent
        assert len(revoked) > TASKS / 20  # all, but on a machine so slow that the first were due before

        broker = rabbitmq or site.broker
        for share, victim in ((0.15, site.worker), (0.45, site.duemq), (0.75, broker)):
            between = start + (round(share * TASKS) + 0.5) * APART_S
            wait_for(lambda until=between: time.time() > until, "tasks are coming due")  # type: ignore[misc]
            victim.kill()
            victim.start()
        wanted = {f"t{n}" for n in range(TASKS)} - revoked
        lost_at_most = 0 if rabbitmq else LOST_BY_KOMBU
        wait_for(lambda: len(wanted - site.ran().keys()) <= lost_at_most, "all tasks ran", 300)
        with suppress(AssertionError):
            site.wait_for_runs(*wanted, within_s=60)
        found = site.ran()
        assert found.keys() <= wanted
        assert not [task for task in wanted - found.keys() if not site.broker.was_given(ids[task])]
        assert min(late for runs in found.values() for late in runs) >= 0
        tasks.app.duemq.close()
        tasks.app.close()
        gc.collect()


def test_nothing_is_held_twice_or_lost_where_duemq_is_killed_while_tasks_are_sent(tmp_path: Path) -> None:
    with Site(tmp_path) as site:
        tasks = site.tasks()
        for n in range(300):
            if n in (100, 200):
                site.duemq.kill()
                site.duemq.spawn()
            tasks.note.apply_async((f"t{n}",), countdown=3600, ignore_result=True)
        with tasks.app.duemq.client as client:
            assert sum(1 for _ in client.list(topic="celery")) == 300
        tasks.app.duemq.close()
        tasks.app.close()
        gc.collect()


def test_held_tasks_cost_the_workers_nothing(tmp_path: Path) -> None:
    """The measurement of docs/guides/celery.md, on a small scale: each of so many costs a worker 8.5 KiB without
    duemq."""
    figures = measure(tmp_path / "site", 2000, held=True, singles=100)
    assert figures["workers_grew_mib"] < 20, figures
    assert figures["pending_after_kill"] == 2000, figures


def test_without_duemq_an_eta_is_an_error_unless_asked_otherwise(tmp_path: Path) -> None:
    from kombu.exceptions import OperationalError

    from duemq.client.celery import NotHeld

    with Site(tmp_path) as site:
        tasks = site.tasks()
        site.duemq.kill()
        with pytest.raises(OperationalError, match="cannot connect"):
            tasks.note.apply_async(("x",), countdown=60, retry=False, ignore_result=True)
        with pytest.raises(NotHeld), tasks.app.duemq.batch():
            tasks.note.apply_async(("x",), countdown=60, retry=False, ignore_result=True)
        tasks.note.apply_async(("at once",), ignore_result=True)  # the broker is there
        tasks.app.duemq.fallback = True
        tasks.note.apply_async(("y",), countdown=60, retry=False, ignore_result=True)
        with tasks.app.connection_for_read() as connection:
            waiting = connection.SimpleQueue("celery")
            found = [waiting.get(timeout=300).headers["eta"] for _ in range(2)]
            waiting.close()
        assert found[0] is None and found[1] is not None
        tasks.app.duemq.close()
        tasks.app.close()
        gc.collect()
