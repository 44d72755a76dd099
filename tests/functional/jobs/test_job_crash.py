"""A job whose process is killed at each of its calls: another goes on, does no message twice, and counts exactly."""

from __future__ import annotations

import asyncio

import pytest

from duemq.model.log.job import Job, JobEvent, JobState
from duemq.proxy.jobs import runner
from tests.support.jobs.job_world import World, hurry

STEPS = 120  # more calls than a job of this size makes; what is beyond is not killed


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


async def run_killed(world: World, kill_at: int, carried_out: bool) -> Job:
    """Begin a job, kill its first process, and let another one finish it."""
    async with world.process(kill_at, carried_out) as process:
        begun = asyncio.create_task(world.begin(process))
        killed = asyncio.create_task(process.dead.wait())
        await asyncio.wait((begun, killed), return_when=asyncio.FIRST_COMPLETED)
        if begun.done():
            await world.wait(process, begun.result().id)
        begun.cancel()
        killed.cancel()
        await asyncio.gather(begun, killed, return_exceptions=True)
    async with world.process() as heir:
        await heir.admin.ready.wait()
        if not heir.jobs.by_id:
            await world.begin(heir)
        (id_,) = heir.jobs.by_id
        return await world.wait(heir, id_)


@pytest.mark.parametrize("first", range(0, STEPS, 20))
def test_a_job_killed_at_each_call_is_finished_by_another_process(first: int) -> None:
    for kill_at in range(first + 1, first + 21):
        world = World(1000 + kill_at)
        job = asyncio.run(run_killed(world, kill_at, kill_at % 2 == 0))
        assert job.state is JobState.DONE and job.counted == job.total, (kill_at, job)
        world.check(job)


@pytest.mark.parametrize("event", [JobEvent.PAUSE, JobEvent.CANCEL])
def test_the_counts_are_exact_where_a_job_is_stopped_whose_process_is_dead(event: JobEvent) -> None:
    async def scenario(kill_at: int) -> None:
        world = World(kill_at)
        async with world.process(kill_at) as process:
            id_ = (await world.begin(process)).id
            await world.wait(process, id_)
        async with world.process() as clerk:
            await clerk.admin.ready.wait()
            if clerk.jobs.by_id[id_].state is JobState.RUNNING:
                await clerk.jobs.tell(id_, event, "me")
            job = await world.wait(clerk, id_)
            world.check(job)
            if event is JobEvent.PAUSE and job.state is JobState.PAUSED:
                before = world.shards.commands
                await asyncio.sleep(0.05)
                assert world.shards.commands == before, "a paused job goes on"
                await clerk.jobs.tell(id_, JobEvent.RESUME, "me")
                job = await world.wait(clerk, id_)
                assert job.state is JobState.DONE and job.counted == job.total
                world.check(job)

    for kill_at in range(30, 90, 6):
        asyncio.run(scenario(kill_at))


def test_two_processes_that_both_believe_they_run_a_job_redrive_each_letter_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "SILENT_S", 0.0)  # each takes it from the other again and again

    async def scenario() -> None:
        world = World(7, 60)
        async with world.process() as one, world.process() as other:
            id_ = (await world.begin(one)).id
            await other.admin.ready.wait()
            job = await world.wait(one, id_)
            assert job.state is JobState.DONE and job.counted == job.total
            world.check(job)

    asyncio.run(scenario())
