"""The runner of jobs while the administrative log takes nothing, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.admin.administration import Administration
from duemq.cluster.shards.shard_reader import Query
from duemq.cluster.topics.internal_topics import create_logs
from duemq.model.errors import Rejected, StoreFailed
from duemq.model.log.job import Job, Order, PlanPosition, new_id
from duemq.proxy.gateway.base import Gateway, MessagePage
from duemq.proxy.jobs.runner import JobRunner
from tests.support.virtual_loop import VirtualLoop

NOW = 1_000_000


@pytest.mark.parametrize("step", ["claim", "save"])
@pytest.mark.parametrize(
    "error", [StoreFailed("the disk is full"), Rejected("bad_field", "administrative items may have 524,288 bytes")]
)
def test_a_log_that_takes_nothing_is_asked_at_growing_pauses_and_logged_once(
    step: str, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    async def refuse(*arguments: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        raise error

    async def find(query: Query) -> MessagePage:
        return MessagePage([], None)

    async def scenario() -> None:
        bus = MemoryBus(MemoryLog(lambda: NOW))
        await create_logs(bus, 1)
        admin = Administration(lambda: bus, lambda: NOW)
        runner = JobRunner(admin.jobs, cast(Gateway, SimpleNamespace(bus=bus, find=find)), lambda: NOW)
        tasks = [asyncio.create_task(one.run(), name="part") for one in (admin, runner)]
        await admin.log.ready.wait()
        monkeypatch.setattr(admin.jobs, step, refuse)
        order = Order("cancel", {"topic": "x"}, None)
        await admin.jobs.add(Job(new_id(NOW), order, NOW, "settings", 0, PlanPosition(0)))
        await asyncio.sleep(60)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    caplog.set_level(logging.INFO)
    with asyncio.Runner(loop_factory=VirtualLoop) as loop:
        loop.run(scenario())
    assert 0 < calls < 70
    told = [record for record in caplog.records if record.levelno > logging.INFO]
    assert ["fails, and tries again" in record.getMessage() for record in told] == [True]
