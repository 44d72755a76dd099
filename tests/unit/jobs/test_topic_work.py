"""What a job redrives out of a topic of dead letters, and how much of it at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.model.log.job import Job, Order, PlanPosition, new_id
from duemq.model.messages.message import Draft
from duemq.model.messages.names import PURGES
from duemq.model.messages.record import pack_record
from duemq.proxy.gateway.base import Gateway, Receipt
from duemq.proxy.jobs.topic_work import TopicWork

NOW, SOURCE, MIB = 1_000_000, "dlq.billing", 1 << 20


def test_large_letters_are_redriven_a_mib_at_a_time_each_once_and_in_order() -> None:
    sent: list[list[Draft]] = []

    async def send(drafts: Sequence[Draft]) -> list[Receipt]:
        sent.append(list(drafts))
        return [Receipt("id", "scheduled", draft.topic, 0) for draft in drafts]

    async def scenario() -> None:
        bus = MemoryBus(MemoryLog(lambda: NOW))
        await bus.create_topic(SOURCE, 1)
        payloads = [b"%d" % number * 300_000 for number in range(10)]
        frames = [pack_record(None, (("duemq-topic", b"orders"), ("duemq-reason", b"x")), one) for one in payloads]
        await bus.append({(SOURCE, 0): [frames[0], pack_record(None, (), b"of no topic"), *frames[1:]]})
        job = Job(new_id(NOW), Order("redrive", {}, None, source=SOURCE), NOW, "test", 0, PlanPosition(0))
        entries = [f"0:{offset}" for offset in (*range(8), 9, 10, 99)]
        outcomes = await TopicWork(cast(Gateway, SimpleNamespace(bus=bus, send=send)), 0).do(job, 0, entries)
        expected = [payload for number, payload in enumerate(payloads) if number != 7]
        assert [draft.payload for part in sent for draft in part] == expected
        assert max(sum(len(draft.payload or b"") for draft in part) for part in sent) <= MIB
        done, failed, skipped = ("done", ""), ("failed", "no_origin"), ("skipped", "unknown_message")
        assert outcomes == [done, failed, *[done] * 8, skipped]

    asyncio.run(scenario())


def test_a_purge_leaves_a_mark_that_is_no_reader_and_that_an_older_job_does_not_take_back() -> None:
    async def scenario() -> None:
        bus = MemoryBus(MemoryLog(lambda: NOW))
        await bus.create_topic(SOURCE, 1)
        await bus.append({(SOURCE, 0): [pack_record(None, (), b"x")] * 3})
        work = TopicWork(cast(Gateway, SimpleNamespace(bus=bus)), 0)
        for began in (NOW, NOW - 1):
            job = Job(new_id(NOW), Order("purge", {}, None, source=SOURCE), began, "test", 0, PlanPosition(0))
            assert await work.do(job, 0, ["0:1"]) == [("done", "")]
            assert await bus.get_consumer_cursor(SOURCE, PURGES) == b"%d" % NOW
        assert await bus.start_offset(SOURCE, 0) == 2 and await bus.readers(SOURCE) == []

    asyncio.run(scenario())
