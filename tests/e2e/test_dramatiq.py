"""Dramatiq messages that duemq holds, with a real broker and workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq.client import Client
from tests.e2e.celery_site import Site
from tests.e2e.server import BIN, wait_for

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("not_for_ever")]

TOPIC = "dramatiq"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path, project="dramatiq_app", module="held_actors", topic=TOPIC) as site:
        site.worker = site.process("worker", BIN / "dramatiq", "held_actors", "-p", 2, "-t", 2).start()
        yield site


@pytest.fixture
def actors(site: Site) -> Iterator[Any]:
    module = site.tasks()
    yield module
    module.broker.close()
    module.broker.duemq.close()


def pending(site: Site) -> int:
    with Client(site.duemq.url) as client:
        return sum(1 for _ in client.list(topic=TOPIC))


def now_ms() -> int:
    return int(time.time() * 1000)


def test_delays_and_retries(site: Site, actors: Any) -> None:
    due_ms = now_ms() + 1500
    actors.note.send_with_options(args=("delayed", due_ms), delay=1500)
    actors.note.send("at-once", due_ms)
    actors.note.send_with_options(args=("briefly", due_ms), delay=100)  # below the threshold: the broker's own
    actors.flaky.send("flaky")
    found = site.wait_for_runs("delayed", "at-once", "briefly", "flaky:2")
    assert found["delayed"][0] >= 0
    assert min(found["flaky:1"][0], found["flaky:2"][0]) >= 250  # Dramatiq takes half to all of the back-off
    assert {name: len(late) for name, late in found.items()} == dict.fromkeys(
        ("delayed", "at-once", "briefly", "flaky:0", "flaky:1", "flaky:2"), 1
    )
    with Client(site.duemq.url) as client:
        assert sum(1 for _ in client.list(topic=TOPIC, status="delivered")) == 3


def test_cancel(site: Site, actors: Any) -> None:
    sent = [actors.note.send_with_options(args=(f"n{n}", 0), delay=3_600_000) for n in range(3)]
    assert actors.broker.duemq.cancel([sent[0].message_id, "never-sent"]) == {sent[0].message_id}
    assert actors.broker.duemq.cancel([sent[0].message_id]) == {sent[0].message_id}  # again says the same
    assert pending(site) == 2
    with Client(site.duemq.url) as client:
        client.deliver_now(f"{TOPIC}:{sent[1].message_id}:0")
    site.wait_for_runs("n1")
    assert actors.broker.duemq.cancel([sent[1].message_id]) == set()
    assert site.ran().keys() == {"n1"}


@pytest.mark.slow
def test_every_message_runs_and_not_early(site: Site, actors: Any) -> None:
    """kill -9 of duemq with its relay, broker and workers in turn, each while messages come due."""
    start_ms = now_ms() + 2000
    due = {f"t{n}": start_ms + 40 * n for n in range(250)}
    for name, due_ms in due.items():
        actors.note.send_with_options(args=(name, due_ms), delay=max(due_ms - now_ms(), 0) + 1)
    for share, victim in ((0.2, site.duemq), (0.45, site.broker), (0.7, site.worker)):
        wait_for(lambda share=share: now_ms() > start_ms + share * 10_000, "messages are coming due")  # type: ignore[misc]
        victim.kill()
        victim.start()
    site.wait_for_runs(*due, within_s=300)
    assert site.ran().keys() == due.keys()
    assert min(late for runs in site.ran().values() for late in runs) >= 0
