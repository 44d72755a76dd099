"""A job whose topic of dead letters is deleted, or made again, ends all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from duemq.bus.base import Bus, wall_clock
from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.memory import MemoryLog
from duemq.cluster.admin.administration import Administration
from duemq.delay.node_backend import NodeBackend
from duemq.model.errors import Unavailable
from duemq.model.log.job import Job, JobState, Order, PlanPosition, new_id
from duemq.model.messages.record import pack_record
from duemq.proxy.gateway.base import Gateway
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.proxy.jobs.runner import JobRunner
from duemq.proxy.jobs.topic_work import TopicWork
from tests.functional.kafka.kafka_bus import new_topic
from tests.functional.kafka.test_kafka_refusals import delete
from tests.support.http.proxy_site import running_node
from tests.support.patience import SERVERS_S

SOURCE, LETTERS = "dlq.billing", 40


def letter(text: bytes) -> bytes:
    return pack_record(None, (("duemq-topic", b"orders"),), text)


def redrive(kind: str = "redrive", source: str = SOURCE) -> Job:
    now = wall_clock()
    fields = {"dead_from": "2020-01-01T00:00:00Z"} if kind == "redrive" else {"dead_to": "2999-01-01T00:00:00Z"}
    return Job(new_id(now), Order(kind, fields, rate=20.0, source=source), now, "test", 0, PlanPosition(0))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SERVERS_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def nothing(bus: Bus) -> None:
    """The topic stays away."""


async def made_again(bus: Bus) -> None:
    await bus.create_topic(SOURCE, 1)
    await bus.append({(SOURCE, 0): [letter(b"of another life")] * 30})


@pytest.mark.parametrize("then", [nothing, made_again])
def test_a_job_whose_source_is_deleted_skips_what_is_gone_and_ends(
    then: Callable[[Bus], Awaitable[None]], tmp_path: Path
) -> None:
    async def scenario() -> None:
        log = MemoryLog()
        async with running_node(tmp_path / "data", log, "", 1, 0.0) as node:
            gateway = CommandGateway(NodeBackend(node))
            for topic in ("orders", SOURCE):
                await node.bus.create_topic(topic, 1)
            await node.bus.append({(SOURCE, 0): [letter(b"x")] * LETTERS})
            admin = Administration(lambda: node.bus, wall_clock)
            following = asyncio.create_task(admin.run())
            await admin.log.ready.wait()
            runner = JobRunner(admin.jobs, gateway, wall_clock)
            working = asyncio.create_task(runner.run())
            await admin.jobs.add(job := redrive())
            await until(lambda: admin.jobs.by_id[job.id].done > 0)
            del log.topics[SOURCE]
            await then(node.bus)
            await until(lambda: admin.jobs.by_id[job.id].state is JobState.DONE and not runner._running)
            ended = admin.jobs.by_id[job.id]
            assert ended.skipped == {"unknown_message": LETTERS - ended.done} and not ended.needs_work
            records = [record.frame for record in await node.bus.read("orders", 0, 0, 100)]
            assert len(records) <= LETTERS and not any(frame.endswith(b"of another life") for frame in records)
            for task in (working, following):
                task.cancel()
            await asyncio.gather(working, following, return_exceptions=True)

    asyncio.run(scenario())


@pytest.mark.anyio
@pytest.mark.smoke
async def test_on_kafka_a_deleted_source_is_told_from_one_that_cannot_be_read(bus: KafkaBus) -> None:
    source = await new_topic(bus)
    await bus.append({(source, 0): [letter(b"x")] * 3})
    work, job = TopicWork(cast(Gateway, SimpleNamespace(bus=bus)), 0), redrive(source=source)
    async with asyncio.timeout(SERVERS_S):
        entries: list[str] = []
        while not entries:
            with suppress(Unavailable):  # the end is not within reach yet
                entries = (await work.plan(job.order, wall_clock() + 60_000, None)).entries
            await asyncio.sleep(0.05)
        assert entries == ["0:0", "0:1", "0:2"]
        await delete(bus, source)
        gone = [("skipped", "unknown_message")] * 3
        assert await work.do(job, 0, entries) == gone
        assert await work.do(redrive("purge", source), 0, entries) == [("done", "")] * 3
        await bus.create_topic(source, 1)
        assert await work.do(job, 0, entries) == gone
