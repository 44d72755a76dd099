"""Who may begin which jobs, how many, and what a repeat does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from duemq.model.log.job import JobEvent
from duemq.proxy.table import ENDPOINTS
from tests.support.http.http_site import ORDER, FakeGateway, refused, with_app
from tests.support.http.http_site import Ask as AskApp
from tests.unit.http.test_http_access import Site, path_of, with_site

CANCEL = {"kind": "cancel", "filter": {"topic": "orders"}}
REPEAT = {"Idempotency-Key": "nightly"}


@pytest.mark.parametrize(
    ("source", "status"),
    [("a.live", 403), ("mydlq.x", 403), ("dlq.billing", 404), ("duemq.dlq", 404)],  # 404: it is not there
)
def test_operate_purges_topics_of_dead_letters_alone_and_admin_any(source: str, status: int) -> None:
    async def scenario(site: Site) -> None:
        site.gateway.bus = site.bus
        body = {"kind": "purge", "source": source, "filter": {"dead_to": "2035-01-01T00:00:00Z"}}
        answer = await site.ask("POST", "/v1/jobs", await site.key("operate"), body)
        assert answer.status_code == status, answer.text
        if status == 403:
            assert answer.json()["field"] == "source" and "topics.purgeable" in answer.json()["detail"]
        assert (await site.ask("POST", "/v1/jobs", await site.key("admin"), body)).status_code == 404

    with_site(scenario)


def test_a_caller_has_four_jobs_open_and_takes_none_from_others() -> None:
    async def scenario(site: Site) -> None:
        site.gateway.bus = site.bus
        one, other = await site.key("operate", "cancel"), await site.key("operate", "cancel")
        jobs = [await site.ask("POST", "/v1/jobs", one, CANCEL) for _ in range(5)]
        assert [job.status_code for job in jobs] == [201] * 4 + [409]
        assert jobs[0].json()["waiting"] and "4 jobs of this caller" in refused(jobs[4], 409, "too_many_jobs")["detail"]
        await site.admin.jobs.tell(jobs[0].json()["id"], JobEvent.PAUSE, "test")
        assert (await site.ask("POST", "/v1/jobs", one, CANCEL)).status_code == 409
        assert (await site.ask("POST", "/v1/jobs", other, CANCEL)).status_code == 201
        await site.admin.jobs.tell(jobs[0].json()["id"], JobEvent.CANCEL, "test")
        assert (await site.ask("POST", "/v1/jobs", one, CANCEL)).status_code == 201

    with_site(scenario)


def test_a_repeat_with_the_same_idempotency_key_begins_no_second_job() -> None:
    async def scenario(site: Site) -> None:
        site.gateway.bus = site.bus
        one, other = await site.key("operate", "cancel"), await site.key("operate", "cancel")

        async def begin(key: str, body: dict[str, Any]) -> httpx.Response:
            return await site.ask("POST", "/v1/jobs", key, body, **REPEAT)

        move = {"kind": "move", "filter": {"topic": "orders"}, "deliver_at": site.now + 1_000}
        first = await begin(one, move)
        assert first.status_code == 201
        site.now += 3_600_000  # by now the time is past
        again = await begin(one, move)
        assert again.status_code == 200 and again.json()["id"] == first.json()["id"]
        conflict = refused(await begin(one, CANCEL), 422, "idempotency_conflict")
        assert conflict["id"] == first.json()["id"] and conflict["field"] == "Idempotency-Key"
        assert (await begin(other, CANCEL)).status_code == 201  # each caller has its own keys
        assert len(site.admin.jobs.listed()) == 2
        known = site.admin.jobs.listed()[0]
        assert await site.admin.jobs.add(replace(known, id="another")) is known  # one that another process began

    with_site(scenario)


TAKE_ONE = {("POST", "/v1/messages"), ("POST", "/v1/jobs")}


@pytest.mark.parametrize(
    ("method", "path"),
    [(one.method, one.path) for one in ENDPOINTS if (one.method, one.path) not in TAKE_ONE],
)
def test_an_idempotency_key_is_refused_if_it_means_nothing(method: str, path: str) -> None:
    async def scenario(gateway: FakeGateway, ask: AskApp) -> None:
        answer = await ask(method, path_of(path), json=None if method == "GET" else ORDER, headers=REPEAT)
        document = refused(answer, 400, "bad_header")
        assert document["field"] == "Idempotency-Key" and not gateway.sent and not gateway.changes

    with_app(scenario)
