"""Items of the administrative state that a newer version of duemq wrote: left out, and the rest goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest

from duemq.bus.base import Bus, wall_clock
from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.admin.administration import Administration
from duemq.cluster.admin.jobs import MAX_JOBS
from duemq.cluster.admin.sessions import MAX_SESSIONS
from duemq.cluster.admin.state import ItemChange
from duemq.cluster.topics.internal_topics import ADMIN, create_logs
from duemq.model.callers.access import new_key
from duemq.model.callers.session import digest_of, new_session
from duemq.model.log.job import Job, JobState, Order, PlanPosition, new_id
from duemq.model.messages.record import pack_record

pytestmark = pytest.mark.anyio
DAY_MS = 86_400_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def administration() -> AsyncIterator[tuple[Administration, Bus]]:
    bus = MemoryBus(MemoryLog())
    await create_logs(bus, 1)
    admin = Administration(lambda: bus, wall_clock)
    running = asyncio.create_task(admin.run())
    await admin.log.ready.wait()
    try:
        yield admin, bus
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def write(admin: Administration, bus: Bus, item: str, value: Mapping[str, Any]) -> None:
    """As a newer version does, which also says more in its records."""
    frame = ItemChange(item, admin.log.state.version_of(item) + 1, value, wall_clock(), "newer")._asdict()
    record = orjson.dumps({"format": 1, **frame, "trace": "abc"})
    await bus.append({(ADMIN, 0): [pack_record(item.encode(), (), record)]})
    while admin.log.state.items.get(item) is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def a_job(**changes: Any) -> Job:
    job = Job(new_id(wall_clock()), Order("cancel", {"topic": "x"}), 1, "test", 0, PlanPosition(0))
    return replace(job, **changes)


async def test_items_of_a_newer_version_are_left_out_and_the_rest_goes_on() -> None:
    async with administration() as (admin, bus):
        now = wall_clock()
        own = await admin.keys.make({"name": "app", "role": "operator"}, "test")
        newer, _ = new_key("newer", ["admin"], now)
        session, text = new_session("user:ann", "user", now, now + DAY_MS)
        job = a_job()
        await write(admin, bus, f"keys/{newer.id}", newer.value() | {"only_from": "10.0.0.0/8"})
        await write(admin, bus, "sessions/0", session.value() | {"second_factor": True})
        await write(admin, bus, "jobs/0", job.value() | {"priority": 3})
        await write(admin, bus, "jobs/1", job.value() | {"order": job.value()["order"] | {"unless": "x"}})
        await write(admin, bus, "jobs/2", job.value() | {"state": "stalled"})
        await write(admin, bus, "quotas/x", {"of": "a kind that is not known"})
        assert admin.log.ready.is_set() and admin.log.trouble is None
        assert list(admin.keys.by_id) == [own["id"]], "what a key does not allow is not known: it is closed"
        assert admin.sessions.find(digest_of(text)) is None
        assert not admin.jobs.by_id and not admin.jobs.all_known


async def test_a_server_whose_only_key_is_of_a_newer_version_stays_closed() -> None:
    async with administration() as (admin, bus):
        newer, _ = new_key("newer", ["admin"], wall_clock())
        assert admin.keys.count == 0
        await write(admin, bus, f"keys/{newer.id}", newer.value() | {"only_from": "10.0.0.0/8"})
        assert (admin.keys.count, admin.keys.by_id) == (1, {})


async def test_what_cannot_be_read_keeps_its_place() -> None:
    async with administration() as (admin, bus):
        now = wall_clock()
        for number in range(MAX_JOBS - 1):
            ended = a_job(state=JobState.DONE, ended_at=number + 1)
            await write(admin, bus, f"jobs/{number}", ended.value() | ({"priority": 3} if number < 5 else {}))
        for number in range(MAX_SESSIONS):
            session, _ = new_session("user:ann", "user", now, now + DAY_MS)
            await write(admin, bus, f"sessions/{number}", session.value() | ({"new": 1} if number < 199 else {}))
        for _ in range(3):
            await admin.jobs.add(a_job())
            await admin.sessions.begin(new_session("user:bob", "user", now, now + DAY_MS)[0])
        values = dict(admin.log.state.of_kind("jobs"))
        assert all("priority" in values[str(number)] for number in range(5))
        assert all("new" in value for name, value in admin.log.state.of_kind("sessions") if name != "199")
