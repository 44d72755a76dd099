"""The audit trail: what is written into it, and how it is read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.bus.topic_cursor import encode_cursor
from duemq.cluster.admin import trail as admin_trail
from duemq.cluster.admin.trail import ACTS, DENIALS, Trail, TrailEntry
from duemq.cluster.topics.internal_topics import TRAIL, create_logs
from duemq.model.errors import Rejected, StoreFailed, Unavailable
from duemq.model.messages.record import StoredRecord
from duemq.proxy.gateway.base import MessagePage
from tests.support.http.http_site import FORM, ORDER
from tests.support.virtual_loop import VirtualLoop
from tests.unit.http.test_http_access import Site, with_site


async def entries_of(site: Site, key: str = "") -> list[dict[str, Any]]:
    await site.admin.trail.flush()
    document = (await site.ask("GET", "/v1/trail", key)).json()
    entries: list[dict[str, Any]] = document["entries"]
    return entries


def test_each_administrative_act_is_written_with_who_and_what_came_of_it() -> None:
    async def scenario(site: Site) -> None:
        admin = await site.key("admin")
        made = await site.ask("POST", "/v1/keys", admin, {"name": "shop", "scopes": ["send"]})
        site.now += 1
        await site.ask("POST", "/v1/keys", admin, {"name": "shop", "scopes": ["fly"]})
        site.now += 1
        await site.ask("POST", "/v1/cluster/nodes/a:drain", admin)
        await site.ask("POST", "/v1/messages", admin, ORDER)
        await site.ask("GET", "/v1/keys", admin)
        drained, refused, created = await entries_of(site, admin)
        assert created["by"] == drained["by"] == admin.split("_")[1] and created["from"] == "127.0.0.1"
        assert (created["action"], created["result"], created["code"]) == ("POST /v1/keys", 201, "")
        assert (refused["action"], refused["result"], refused["code"]) == ("POST /v1/keys", 400, "bad_field")
        assert drained["action"] == "POST /v1/cluster/nodes/{node}:drain"
        assert drained["target"] == "/v1/cluster/nodes/a:drain"
        assert created["request_id"] == made.headers["X-Request-Id"]

    with_site(scenario)


def test_what_is_denied_is_written_and_repeats_are_counted() -> None:
    async def scenario(site: Site) -> None:
        admin, viewer = await site.key("admin"), await site.key("read")
        for _ in range(3):
            await site.ask("POST", "/v1/messages", "wrong", ORDER)
            await site.ask("POST", "/v1/messages", viewer, ORDER)
        by_code = {entry["code"]: entry for entry in await entries_of(site, admin)}
        assert by_code["unauthorised"]["by"] == "" and by_code["unauthorised"]["times"] == 3
        assert by_code["forbidden"]["by"] == viewer.split("_")[1] and by_code["forbidden"]["times"] == 3

    with_site(scenario)


def test_an_act_is_what_changed_something() -> None:
    async def scenario(site: Site) -> None:
        admin = await site.key("admin")
        operator = await site.key("operate", "cancel", "read")
        revoked = f"/v1/keys/{(await site.key('read')).split('_')[1]}"
        site.gateway.pages = [MessagePage([], None)] * 3
        job = {"kind": "cancel", "filter": {"topic": "orders"}}
        began = (await site.ask("POST", "/v1/jobs", operator, job)).json()["id"]
        for _ in range(3):
            await site.ask("DELETE", revoked, admin)
            await site.ask("POST", f"/v1/jobs/{began}:pause", operator)
            await site.ask("POST", "/v1/jobs/zzz:pause", operator)
            await site.ask("POST", "/v1/jobs", operator, job | {"dry_run": True})
            await site.ask("POST", "/v1/keys", admin, {"name": "a", "scopes": ["fly"]})
            assert (await site.http.post("/console/logout", headers=FORM)).status_code == 303
            for form in ("/console/logout", "/console/login", "/console/changes"):
                answer = await site.http.post(form, content=b"\xe4", headers=FORM)
                assert answer.status_code < 500
        await site.admin.trail.flush()
        acts = [TrailEntry.of(one) for one in await site.gateway.bus.read(TRAIL, ACTS, 0, 1_000)]
        assert [act.action for act in acts] == ["POST /v1/jobs", "DELETE /v1/keys/{id}", "POST /v1/jobs/{id}:pause"]
        refused = [TrailEntry.of(one) for one in await site.gateway.bus.read(TRAIL, DENIALS, 0, 1_000)]
        assert {one.action: one.times for one in refused} == {
            "POST /v1/jobs/{id}:pause": 3, "POST /v1/keys": 3, "POST /console/login": 3, "POST /console/changes": 3,
            "POST /console/logout": 3,
        }  # fmt: skip

    with_site(scenario)


def test_a_consumer_that_commits_all_day_is_one_act_an_hour() -> None:
    async def scenario(site: Site) -> None:
        await site.gateway.bus.create_topic("orders", 1)
        mine, other = await site.key("consume"), await site.key("consume")
        place = {"cursor": encode_cursor("orders", [0])}
        for _ in range(2):
            for key in (mine, mine, other, mine):
                answer = await site.ask("PUT", "/v1/topics/orders/consumers/billing", key, place)
                assert answer.status_code == 204
            site.now += 3_600_000
        acts = [TrailEntry.of(one) for one in await site.gateway.bus.read(TRAIL, ACTS, 0, 1_000)]
        assert [act.by for act in acts] == [mine.split("_")[1], other.split("_")[1]] * 2
        assert {(act.action, act.target) for act in acts} == {
            ("PUT /v1/topics/{topic}/consumers/{consumer}", "/v1/topics/orders/consumers/billing")
        }

    with_site(scenario)


def test_a_cursor_that_is_deleted_is_an_act_and_one_that_is_not_there_is_none() -> None:
    async def scenario(site: Site) -> None:
        await site.gateway.bus.create_topic("orders", 1)
        key, place = await site.key("consume"), "/v1/topics/orders/consumers/billing"
        await site.ask("PUT", place, key, {"cursor": encode_cursor("orders", [0])})
        for _ in range(2):
            assert (await site.ask("DELETE", place, key)).status_code == 204
        acts = [TrailEntry.of(one).action for one in await site.gateway.bus.read(TRAIL, ACTS, 0, 1_000)]
        route = "/v1/topics/{topic}/consumers/{consumer}"
        assert acts == [f"PUT {route}", f"DELETE {route}"]

    with_site(scenario)


def test_the_trail_is_for_administrators() -> None:
    async def scenario(site: Site) -> None:
        operator = await site.key("operate", "read")
        assert (await site.ask("GET", "/v1/trail", operator)).status_code == 403

    with_site(scenario)


def entry(at: int, action: str = "act") -> TrailEntry:
    return TrailEntry(at, "me", "10.0.0.1", action, "/", 200, "", "r1")


async def opened() -> tuple[MemoryBus, Trail]:
    bus = MemoryBus(MemoryLog(lambda: 0))
    await create_logs(bus, 1)
    return bus, Trail(lambda: bus, lambda: 0)


def test_pages_hold_every_entry_once_newest_first() -> None:
    async def scenario() -> None:
        _, trail = await opened()
        for at in range(0, 60, 2):
            await trail.act(entry(at))
            if at % 3 == 0:
                trail.deny(entry(at + 1, f"denied {at}"))
            await trail.flush()
        everything = (await trail.read(1000)).entries
        assert len(everything) == 40 and [one.at for one in everything] == sorted(one.at for one in everything)[::-1]
        for limit in (1, 7, 40, 41):
            read: list[TrailEntry] = []
            cursor: str | None = None
            while True:
                page = await trail.read(limit, cursor)
                read += page.entries
                assert len(page.entries) <= limit
                if (cursor := page.cursor) is None:
                    break
            assert read == everything
        with pytest.raises(Rejected, match="no cursor"):
            await trail.read(5, "5")

    asyncio.run(scenario())


class RemoteBus(MemoryBus):
    """Has nothing at hand of what it was not asked for before, as one whose log is elsewhere. `away`: it never has."""

    def __init__(self, log: MemoryLog, *, away: bool = False) -> None:
        super().__init__(log)
        self.away, self.asked = away, set[tuple[str, int]]()

    async def read(self, topic: str, partition: int, *more: int) -> list[StoredRecord]:
        known = (topic, partition) in self.asked and not self.away
        self.asked.add((topic, partition))
        return await super().read(topic, partition, *more) if known else []

    async def end_offset(self, topic: str, partition: int) -> int:
        return super().reach(topic, partition)

    def reach(self, topic: str, partition: int) -> int:
        return 0 if self.away else super().reach(topic, partition)


@pytest.mark.parametrize("away", [False, True])
def test_the_first_page_of_a_log_that_is_elsewhere_waits_for_its_entries(
    away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_trail, "_LOOK_AGAIN_S", 0.001)

    async def scenario() -> None:
        bus = RemoteBus(MemoryLog(lambda: 0), away=away)
        await create_logs(bus, 1)
        trail = Trail(lambda: bus, lambda: 0)
        await trail.act(entry(1))
        if away:
            with pytest.raises(Unavailable, match="up to its end"):
                await trail.read(10)
        else:
            assert (await trail.read(10)).entries == [entry(1)]

    asyncio.run(scenario())


def test_a_flood_of_denials_is_bounded_and_drops_no_act(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_trail, "_KEPT_RECORDS", 50)
    monkeypatch.setattr(admin_trail, "_SLACK_RECORDS", 10)

    async def scenario() -> None:
        bus, trail = await opened()
        await trail.act(entry(1))
        for flush in range(30):
            for number in range(100):
                trail.deny(entry(flush, f"guess {number}"))
            await trail.flush()
        page = await trail.read(1000)
        assert sum(one.action == "act" for one in page.entries) == 1
        assert {one.times for one in page.entries if one.action == "others"} == {80}
        assert await bus.end_offset(TRAIL, 1) - await bus.start_offset(TRAIL, 1) < 50 + 10 + 21

    asyncio.run(scenario())


def test_what_cannot_be_written_is_counted_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        bus, trail = await opened()

        async def append(*_: object) -> None:
            raise StoreFailed("the disk is away")

        bus.append = append  # type: ignore[assignment,method-assign]
        lost: list[int] = []
        trail.on_lost = lost.append
        await trail.act(entry(1))
        assert lost == [1] and "the disk is away" in caplog.text

    asyncio.run(scenario())


def test_what_was_denied_while_the_log_is_away_is_written_once_it_is_back() -> None:
    async def scenario() -> None:
        bus, trail = await opened()
        append, lost = bus.append, list[int]()
        trail.on_lost = lost.append

        async def refuse(*_: object) -> None:
            raise StoreFailed("the disk is full")

        running = asyncio.create_task(trail.run(), name="trail")
        bus.append = refuse  # type: ignore[assignment,method-assign]
        trail.deny(entry(1, "guess"))
        await asyncio.sleep(20)
        trail.deny(entry(2, "guess"))
        bus.append = append  # type: ignore[method-assign]
        await asyncio.sleep(20)
        assert [(one.action, one.times) for one in (await trail.read(10)).entries] == [("guess", 2)]
        trail.deny(entry(3, "last"))
        running.cancel()
        await asyncio.wait([running])
        assert {one.action for one in (await trail.read(10)).entries} == {"guess", "last"}
        assert lost == []

    with asyncio.Runner(loop_factory=VirtualLoop) as loop:
        loop.run(scenario())


def test_what_is_written_and_cannot_be_shortened_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_trail, "_KEPT_RECORDS", 0)

    async def scenario() -> None:
        bus, trail = await opened()
        monkeypatch.setattr(admin_trail, "_SLACK_RECORDS", 1)

        async def trim(*_: object) -> None:
            raise StoreFailed("this user may not delete")

        bus.trim = trim  # type: ignore[assignment,method-assign]
        lost: list[int] = []
        trail.on_lost = lost.append
        await trail.act(entry(1))
        assert lost == [] and (await trail.read(10)).entries == [entry(1)]

    asyncio.run(scenario())
