"""Celery tasks that duemq holds, with a real broker (a Valkey, and a RabbitMQ) and worker."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from celery import chain, chord, group

from duemq.client import Client
from tests.e2e.celery_site import Site
from tests.e2e.server import wait_for
from tests.support.patience import PROCESS_S

pytestmark = [
    pytest.mark.servers,
    pytest.mark.usefixtures("not_for_ever"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),  # Celery's backend does
]
_ON_RABBITMQ = pytest.mark.xdist_group("destinations")


@pytest.fixture(scope="module", params=["valkey", pytest.param("rabbitmq", marks=_ON_RABBITMQ)])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """For tests that leave it as it was."""
    amqp = ""
    if request.param == "rabbitmq":
        amqp = request.getfixturevalue("rabbitmq").add_virtual_host("celery")
    with Site(tmp_path_factory.mktemp("celery"), amqp=amqp) as site:
        site.worker.start()
        wait_for(lambda: "ready." in site.worker.log, "the worker is ready", PROCESS_S)
        yield site


@pytest.fixture
def tasks(site: Site) -> Iterator[ModuleType]:
    yield from published_with(site)


def published_with(site: Site) -> Iterator[ModuleType]:
    """The app's module. Results that are dropped tell the broker, so it must be there until then."""
    module = site.tasks()
    yield module
    gc.collect()
    module.app.close()
    module.app.duemq.close()


def pending(site: Site) -> int:
    with Client(site.duemq.url) as client:
        return sum(1 for _ in client.list(topic="celery"))


def test_what_has_an_eta_runs_at_it_and_what_has_none_at_once(site: Site, tasks: Any) -> None:
    due, eta = tasks.soon(1.5)
    by_eta = tasks.note.apply_async(("eta", due), eta=eta)
    by_countdown = tasks.note.apply_async(("countdown", due - 0.5), countdown=1.0)
    tasks.note.delay("at-once", due)
    found = site.wait_for_runs("eta", "countdown", "at-once")
    assert found["eta"][0] >= 0
    assert found["countdown"][0] >= -5  # it was worked out a little after the other
    assert (by_eta.get(timeout=300), by_countdown.get(timeout=300)) == ("eta", "countdown")


def test_retries_links_chains_groups_and_chords(site: Site, tasks: Any) -> None:
    with Client(site.duemq.url) as client:
        before = sum(1 for _ in client.list(topic="celery", status="delivered"))
    due, eta = tasks.soon(3.0)  # on a busy machine it takes a while to send them all
    retried = tasks.flaky.apply_async(("flaky", due), eta=eta)
    linked = tasks.note.apply_async(("first", due), eta=eta, link=tasks.note.si("linked", due + 0.4).set(countdown=0.4))
    chained = chain(tasks.note.si("c1"), tasks.note.si("c2", due).set(eta=eta), tasks.note.si("c3")).delay()
    grouped = group(tasks.note.si("g1", due), tasks.note.si("g2", due)).apply_async(eta=eta)
    whole = chord([tasks.note.si("h1", due), tasks.note.si("h2", due)], tasks.total.s()).apply_async(eta=eta)
    assert retried.get(timeout=300) == "flaky"
    assert (linked.get(timeout=300), chained.get(timeout=300)) == ("first", "c3")
    assert (grouped.get(timeout=300), whole.get(timeout=300)) == (["g1", "g2"], "h1+h2")
    found = site.wait_for_runs("linked")
    found = {name: late for name, late in found.items() if name not in ("eta", "countdown", "at-once")}
    assert {name: len(late) for name, late in found.items()} == dict.fromkeys(
        ["flaky:0", "flaky:1", "flaky:2", "first", "linked", "c1", "c2", "c3", "g1", "g2", "h1", "h2"], 1
    )
    assert all(found[name][0] >= 0 for name in ("flaky:0", "linked", "c2", "g1", "g2", "h1", "h2"))
    assert all(-10 < found[name][0] for name in ("flaky:1", "flaky:2"))
    with Client(site.duemq.url) as client:
        assert sum(1 for _ in client.list(topic="celery", status="delivered")) - before == 10


def test_a_revoke_is_a_cancel(site: Site, tasks: Any) -> None:
    due, eta = tasks.soon(3600)
    one = tasks.note.apply_async(("one", due), eta=eta)
    several = group(tasks.note.si("two", due), tasks.note.si("three", due)).apply_async(eta=eta)
    odd = tasks.note.apply_async(("odd", due), eta=eta, task_id="my own id, with spaces / \u00e4")
    kept = tasks.note.apply_async(("kept", due), eta=eta)
    assert pending(site) == 5
    one.revoke()
    several.revoke()
    tasks.app.control.revoke(odd.id)
    assert pending(site) == 1
    assert {result.state for result in (one, odd, *several.results)} == {"REVOKED"}
    one.revoke()  # again is no error
    with Client(site.duemq.url) as client:
        client.deliver_now(f"celery:{kept.id}:0")
    assert kept.get(timeout=300) == "kept"
    assert not {"one", "two", "three", "odd"} & site.ran().keys()


def test_one_id_several_times(site: Site, tasks: Any) -> None:
    due, eta = tasks.soon(3600)
    for what in ("a", "b", "b", "c"):
        tasks.note.apply_async((what, due), eta=eta, task_id="daily")
    assert pending(site) == 3  # the same again is a repeat
    tasks.app.control.revoke(["daily", "never-sent"])
    assert pending(site) == 0


def test_a_retry_that_is_held_can_be_revoked(site: Site, tasks: Any) -> None:
    tasks.app.conf.task_ignore_result = False
    slow = tasks.flaky.apply_async(("slow", 0.0), countdown=60, retries=33)
    tasks.app.control.revoke(slow.id)
    assert pending(site) == 1  # nothing of that id was held with fewer retries, so it was not looked for so far
    first = tasks.flaky.apply_async(("slow", 0.0), countdown=60, task_id=slow.id, retries=31)
    tasks.app.control.revoke(first.id)
    assert pending(site) == 0


def test_what_a_task_is_sent_with_arrives(site: Site, tasks: Any) -> None:
    result = tasks.request_of.apply_async(
        (b"\xff\x00",), countdown=3600, expires=7200, priority=7, headers={"mine": "x"}, serializer="pickle",
        compression="gzip", queue="other", shadow="shade",
    )  # fmt: skip
    with Client(site.duemq.url) as client:
        client.deliver_now(f"celery:{result.id}:0")
    found = result.get(timeout=300)
    assert found.pop("expires") is not None
    assert found == {"args": [[255, 0]], "eta": None, "priority": 7, "mine": "x", "queue": "other", "shadow": "shade"}
