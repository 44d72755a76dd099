"""A full administrative state: what takes something back always works, and a job goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from duemq.bus.base import wall_clock
from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.admin import api_keys, state
from duemq.cluster.admin.administration import Administration
from duemq.cluster.admin.jobs import Jobs
from duemq.cluster.admin.log import AdminLog
from duemq.cluster.topics.internal_topics import create_logs
from duemq.delay.node_backend import NodeBackend
from duemq.model.callers.session import digest_of, new_session
from duemq.model.errors import Rejected
from duemq.model.log.job import Job, JobEvent, JobState, Order, PlanPosition, new_id
from duemq.model.messages.message import Draft
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.proxy.jobs.runner import JobRunner
from tests.support.http.proxy_site import running_node

pytestmark = pytest.mark.anyio
DAY_MS = 86_400_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Clock:
    now = wall_clock()

    def __call__(self) -> int:
        return self.now


@asynccontextmanager
async def administration(clock: Clock) -> AsyncIterator[Administration]:
    bus = MemoryBus(MemoryLog())
    await create_logs(bus, 1)
    admin = Administration(lambda: bus, clock)
    running = asyncio.create_task(admin.run())
    await admin.log.ready.wait()
    try:
        yield admin
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def fill(log: AdminLog) -> None:
    """Until nothing more can be added, of any kind."""
    for kind, sizes in (("credentials", (5_000, 20)), ("destinations", (5_000, 20)), ("keys", (5_000, 20))):
        for size in sizes:
            with suppress(Rejected):
                for number in range(1_000):
                    await log.change(f"{kind}/x{size}-{number}", {"x": "y" * size}, "test")


def job() -> Job:
    return Job(new_id(wall_clock()), Order("cancel", {"topic": "x"}), 1, "test", 0, PlanPosition(0))


async def test_in_a_full_state_all_can_be_taken_back() -> None:
    clock = Clock()
    async with administration(clock) as admin:
        key = await admin.keys.make({"name": "leaked", "role": "admin"}, "test")
        session, text = new_session("user:ann", "user", clock.now, clock.now + DAY_MS)
        await admin.sessions.begin(session)
        await admin.jobs.add(begun := job())
        await admin.jobs.add(other := job())
        await admin.destinations.declare({"name": "d", "url": "https://h.example.com/x", "topics": ["t"]}, None, "test")
        await fill(admin.log)
        assert admin.log.state.size_bytes > state.MAX_BYTES - 100
        with pytest.raises(Rejected, match="524,288 bytes in all"):
            await admin.keys.make({"name": "new", "role": "viewer"}, "test")
        assert (await admin.keys.revoke(key["id"], "test"))["state"] == "revoked"
        assert (await admin.destinations.disable("d", "x" * 500, "test")).disabled
        assert (await admin.destinations.pause("d", "test")).paused
        assert not (await admin.destinations.resume("d", "test")).paused
        assert (await admin.jobs.tell(begun.id, JobEvent.PAUSE, "test")).state is JobState.PAUSED
        assert (await admin.jobs.tell(begun.id, JobEvent.RESUME, "test")).state is JobState.RUNNING
        assert (await admin.jobs.tell(begun.id, JobEvent.CANCEL, "test")).state is JobState.CANCELLED
        claimed = await admin.jobs.claim(other, admin.jobs.versions[other.id], "owner")
        assert claimed.owner == "owner"
        await admin.sessions.end(digest_of(text), "test")
        assert admin.sessions.find(digest_of(text)) is None
        await admin.log.change("keys/x20-0", {"x": "z" * 20}, "test")  # no larger than it was
        assert len(admin.log.state.snapshot()) < 1_000_000


async def test_destinations_leave_room_for_keys_sessions_and_jobs_and_credentials_for_destinations() -> None:
    clock = Clock()
    async with administration(clock) as admin:
        secrets = {"token": "x" * 5_000}
        with pytest.raises(Rejected, match="262,144 bytes together") as refused:
            for number in range(200):
                fields = {"name": f"d{number}", "url": f"https://h{number}.example.com/x"}
                await admin.destinations.declare(fields, secrets, "test")
        assert refused.value.field == "credentials" and len(admin.destinations.by_name) > 50
        with suppress(Rejected):
            for number in range(200):
                await admin.log.change(f"destinations/{number}", {"x": "y" * 5_000}, "test")
        assert (await admin.keys.make({"name": "app", "role": "viewer"}, "test"))["state"] == "active"
        await admin.jobs.add(job())
        await admin.sessions.begin(new_session("user:ann", "user", clock.now, clock.now + DAY_MS)[0])


async def test_keys_and_sessions_that_ended_are_forgotten_and_a_server_with_keys_stays_closed() -> None:
    clock = Clock()
    async with administration(clock) as admin:
        made = [await admin.keys.make({"name": "app", "role": "viewer"}, "test") for _ in range(3)]
        short = await admin.keys.make({"name": "app", "role": "viewer", "expires_after": "1h"}, "test")
        for one in made[:2]:
            await admin.keys.revoke(one["id"], "test")
        text = ""
        for _ in range(3):
            session, text = new_session("user:ann", "user", clock.now, clock.now + DAY_MS)
            await admin.sessions.begin(session)
        clock.now += api_keys.KEPT_MS
        await admin.keys.make({"name": "new", "role": "viewer"}, "test")
        assert set(admin.keys.by_id) >= {one["id"] for one in (*made, short)}, "they ended a month ago, and not before"
        clock.now += 3_600_001
        await admin.keys.make({"name": "new", "role": "viewer"}, "test")
        assert admin.keys.by_id.keys() & {one["id"] for one in (*made, short)} == {made[2]["id"]}
        await admin.sessions.begin(new_session("user:ann", "user", clock.now, clock.now + DAY_MS)[0])
        assert [name for name, _ in admin.log.state.of_kind("sessions")] == ["0"]
        assert admin.sessions.find(digest_of(text)) is None
        with patch.object(api_keys, "MAX_KEYS", 3):  # without room a key is forgotten as soon as it has ended
            for id_ in list(admin.keys.by_id):
                await admin.keys.revoke(id_, "test")
            last = await admin.keys.make({"name": "last", "role": "viewer"}, "test")
        assert last["id"] in admin.keys.by_id and admin.keys.count == 2, "all but the last of those that had ended"
        await admin.keys.revoke(last["id"], "test")
        clock.now += 2 * api_keys.KEPT_MS
        for _ in range(3):
            await admin.keys.forget(clock.now, "test")
        assert admin.keys.count == 1, "without a key everybody may call"


async def test_keys_can_be_made_however_many_were_made_and_forgotten_before() -> None:
    clock = Clock()
    with patch.object(state, "MAX_REMOVED", 2), patch.object(api_keys, "MAX_KEYS", 4):
        async with administration(clock) as admin:
            for number in range(20):
                made = await admin.keys.make({"name": str(number), "role": "viewer"}, "test")
                await admin.keys.revoke(made["id"], "test")
            assert made["id"] in admin.keys.by_id


async def test_a_job_goes_on_in_a_full_state_and_claims_do_not_spin(tmp_path: Path) -> None:
    claims, claim = 0, Jobs.claim

    async def counted(self: Jobs, *args: object) -> Job:
        nonlocal claims
        claims += 1
        return await claim(self, *args)  # type: ignore[arg-type]

    async with running_node(tmp_path / "data", MemoryLog(), "", 1, 0.0) as node:
        gateway = CommandGateway(NodeBackend(node))
        await node.bus.create_topic("orders", 1)
        await gateway.send([Draft("orders", b"x", wall_clock() + DAY_MS)] * 60)
        admin = Administration(lambda: node.bus, wall_clock)
        following = asyncio.create_task(admin.run())
        await admin.log.ready.wait()
        await admin.jobs.add(begun := job())
        await admin.jobs.tell(begun.id, JobEvent.CANCEL, "test")
        order = Order("cancel", {"topic": "orders"}, rate=20.0)
        await admin.jobs.add(running := Job(new_id(wall_clock()), order, wall_clock(), "test", 0, PlanPosition(0)))
        await fill(admin.log)
        with patch.object(Jobs, "claim", counted):
            working = asyncio.create_task(JobRunner(admin.jobs, gateway, wall_clock).run())
            end = time.monotonic() + 60
            while admin.jobs.by_id[running.id].state is not JobState.DONE and time.monotonic() < end:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (admin.jobs.by_id[running.id].state, admin.jobs.by_id[running.id].done) == (JobState.DONE, 60)
        assert claims == 1
        for task in (working, following):
            task.cancel()
        await asyncio.gather(working, following, return_exceptions=True)
