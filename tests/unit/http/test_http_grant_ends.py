"""What outlasts a request ends with the key, token or session that it began with: within a second, everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import httpx
import pytest

from duemq.cluster.admin.jobs import Jobs
from duemq.model.log.job import Job, JobEvent, JobState, Order, PlanPosition, new_id
from duemq.model.messages.record import pack_record
from duemq.proxy.gateway.base import Gateway, MessagePage
from duemq.proxy.jobs.runner import JobRunner
from tests.support.http.console_site import ConsoleGateway
from tests.support.http.http_site import FORM, STATE
from tests.support.http.provider import Provider
from tests.support.virtual_loop import VirtualLoop
from tests.unit.http.test_http_access import Site, code_of
from tests.unit.http.test_http_tokens import SETTINGS

EVENTS = {"Accept": "text/event-stream"}
WITHIN_S = 1.01
SECRET = b"SECRET"


class LiveSite(Site):
    gateway_type = ConsoleGateway

    async def deliver(self) -> None:
        await self.gateway.bus.create_topic("orders", 1)
        await self.gateway.bus.append({("orders", 0): [pack_record(None, (), SECRET)]})


Scenario = Callable[[LiveSite], Awaitable[None]]


def with_live_site(scenario: Scenario, site: LiveSite | None = None) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as loop:
        loop.run((site or LiveSite()).run(cast(Any, scenario)))


@dataclass
class Grant:
    """Headers that a caller presents, and how that ends."""

    headers: dict[str, str]
    end: Callable[[], Awaitable[None]]


async def grant_of(site: LiveSite, kind: str) -> Grant:
    admin, expires = await site.key("admin"), {"expires_after": "1m"} if kind == "expired" else {}
    key = await site.key("read", **expires)
    path, headers = f"/v1/keys/{key.split('_')[1]}", {"Authorization": f"Bearer {key}"}

    async def end() -> None:
        if kind in ("revoked", "session of a revoked key"):
            await site.ask("DELETE", path, admin)
        elif kind == "rotated":
            await site.ask("POST", f"{path}:rotate", admin, {"overlap": "0s"})
        elif kind == "ended session":
            session = next(iter(site.admin.sessions._places.values()))
            await site.admin.sessions.end(session.sha256, "test")
        else:
            site.now += 61_000

    if "session" in kind:
        answer = await site.http.post("/console/login", data={"key": key}, headers=FORM)
        headers = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
        site.http.cookies.clear()
    return Grant(headers, end)


LASTING = {
    "stream of a topic": ("/v1/topics/orders/records", EVENTS),
    "long poll": ("/v1/topics/orders/records?wait=50s&consumer=c", {}),
    "stream of the console": ("/console/live", EVENTS),
}
KEYS, SESSIONS = ("revoked", "expired", "rotated"), ("session of a revoked key", "ended session")


@pytest.mark.parametrize(
    ("what", "kind"),
    [(what, kind) for what in LASTING for kind in (SESSIONS if "console" in what else KEYS)],
)
def test_an_answer_that_takes_time_ends_with_its_grant(what: str, kind: str) -> None:
    async def scenario(site: LiveSite) -> None:
        loop = asyncio.get_running_loop()
        path, headers = LASTING[what]
        grant = await grant_of(site, kind)
        asking = asyncio.create_task(site.http.get(path, headers=headers | grant.headers), name="ask")
        await asyncio.sleep(20)
        assert not asking.done()
        await grant.end()
        ended_at = loop.time()
        await asyncio.sleep(WITHIN_S)
        await site.deliver()
        answer: httpx.Response = await asking
        assert loop.time() - ended_at <= WITHIN_S
        assert SECRET not in answer.content
        if what == "long poll":
            assert (answer.status_code, code_of(answer)) == (401, "unauthorised")
        again = await site.http.get(path, headers=headers | grant.headers)
        assert again.status_code == 401

    with_live_site(scenario)


@pytest.mark.parametrize("what", list(LASTING))
def test_an_answer_that_takes_time_goes_on_while_the_keys_of_others_change(what: str) -> None:
    async def scenario(site: LiveSite) -> None:
        path, headers = LASTING[what]
        mine = await grant_of(site, "session of a revoked key" if "console" in what else "revoked")
        asking = asyncio.create_task(site.http.get(path, headers=headers | mine.headers), name="ask")
        await asyncio.sleep(5)
        other = await grant_of(site, "rotated")
        await other.end()
        await asyncio.sleep(5)
        assert not asking.done()
        asking.cancel()
        await asyncio.wait([asking])

    with_live_site(scenario)


def test_a_stream_of_a_token_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    provider, client = Provider(), httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **options: client(**{"transport": provider.transport, **options}))

    async def scenario(site: LiveSite) -> None:
        token = provider.token(roles=["duemq-viewer"])
        path, headers = LASTING["stream of a topic"]
        for _ in range(2):  # the second one is known by then
            asking = asyncio.create_task(site.ask("GET", path, token, **headers), name="ask")
            await asyncio.sleep(5)
            await site.key("send")  # what was found good before is forgotten
            await asyncio.sleep(5)
            assert not asking.done()
            if _ == 0:
                asking.cancel()
                await asyncio.wait([asking])
        site.now += 10**9
        await asyncio.sleep(WITHIN_S)
        assert asking.done()

    site = LiveSite(login=SETTINGS)
    with_live_site(scenario, site)


def test_a_stream_of_a_caller_without_a_key_ends_with_the_first_key() -> None:
    async def scenario(site: LiveSite) -> None:
        path, headers = LASTING["stream of a topic"]
        asking = asyncio.create_task(site.http.get(path, headers=headers), name="ask")
        await asyncio.sleep(5)
        assert not asking.done()
        await site.key("admin")
        await asyncio.sleep(0.1)
        assert asking.done()

    with_live_site(scenario)


@pytest.mark.parametrize("kind", KEYS)
def test_a_job_is_paused_when_the_key_that_began_it_ends_and_says_so(kind: str) -> None:
    async def scenario(site: LiveSite) -> None:
        jobs: Jobs = site.admin.jobs
        site.gateway.pages = [MessagePage([STATE] * 50, None)]
        runner = JobRunner(jobs, cast(Gateway, site.gateway), lambda: site.now, 0, site.admin.keys)
        running = asyncio.create_task(runner.run(), name="runner")
        grant = await grant_of(site, kind)
        by = grant.headers["Authorization"].split("_")[1]
        order = Order("cancel", {"topic": "orders"}, 0.01)
        mine, of_settings = (Job(new_id(site.now + n), order, site.now, who, 0, PlanPosition(0)) for n, who in
                             enumerate((by, "settings")))  # fmt: skip
        await jobs.add(mine)
        await jobs.add(of_settings)
        await asyncio.sleep(5)
        assert jobs.by_id[mine.id].state is JobState.RUNNING
        await grant.end()
        await asyncio.sleep(WITHIN_S)
        assert jobs.by_id[of_settings.id].state is JobState.RUNNING
        if kind == "rotated":  # the caller is the same
            assert jobs.by_id[mine.id].state is JobState.RUNNING
        else:
            paused = jobs.by_id[mine.id]
            assert (paused.state, paused.by) == (JobState.PAUSED, by)
            assert paused.reason.startswith(f"key test ({by}) {'was' if kind == 'revoked' else 'has'} {kind}: ")
            await asyncio.sleep(10)  # its owner has written since
            other = (await site.key("operate", "cancel")).split("_")[1]
            await jobs.tell(mine.id, JobEvent.RESUME, other)
            await asyncio.sleep(10)
            resumed = jobs.by_id[mine.id]
            assert (resumed.state, resumed.by, resumed.reason) == (JobState.RUNNING, other, "")
        running.cancel()
        await asyncio.wait([running])

    with_live_site(scenario)
