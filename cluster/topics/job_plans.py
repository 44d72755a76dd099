"""The plans of jobs in their log, `duemq.jobs`: one record per step, with the entries to which the step applies.

A step's record follows the record of the same job that has the previous step and ends where this step begins. So if two
processes write the same plan for a moment, all readers use the same records and skip the others.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final, NamedTuple

import orjson

from duemq.bus.base import Bus
from duemq.cluster.topics.internal_topics import JOBS
from duemq.model.errors import LogFailed
from duemq.model.log.job import Job, PlanPosition
from duemq.model.messages.record import pack_record, unpack_record

MAX_ENTRIES: Final = 1_000
_READ: Final = 20
_LOOKS: Final = 30
_LOOK_AGAIN_S: Final = 1.0


class Step(NamedTuple):
    """One record of a plan. `cursor`: where the next step begins; None: this is the last step."""

    offset: int
    number: int
    entries: Sequence[str]
    cursor: str | None


def _frame(job_id: str, number: int, after: str | None, cursor: str | None, entries: Sequence[str]) -> bytes:
    document = {"job": job_id, "step": number, "after": after, "next": cursor, "entries": entries}
    return pack_record(job_id.encode(), (), orjson.dumps(document))


async def append_step(bus: Bus, job_id: str, number: int, after: str | None, cursor: str | None,
                      entries: Sequence[str]) -> None:  # fmt: skip
    """Write one step. Writing it again does no harm. Raises the errors of `Bus.append`."""
    await bus.append({(JOBS, 0): [_frame(job_id, number, after, cursor, entries)]})


async def append_whole(bus: Bus, job_id: str, entries: Sequence[str]) -> None:
    """Write a plan with all its entries."""
    parts = [entries[at : at + MAX_ENTRIES] for at in range(0, len(entries), MAX_ENTRIES)] or [()]
    last = len(parts) - 1
    frames = [
        _frame(job_id, at, str(at) if at else None, None if at == last else str(at + 1), part)
        for at, part in enumerate(parts)
    ]
    await bus.append({(JOBS, 0): frames})


async def read_plan(bus: Bus, job: Job, position: PlanPosition) -> AsyncGenerator[Step, None]:
    """The steps of a job's plan, from the step at this position to the last step or the log's current end.

    Raises the errors of `Bus.read`.
    """
    end = await bus.sure_end(JOBS, 0)
    offset, expected, after = position.offset, position.step, _ANY if position.step else None
    subscription, looks = bus.subscribe(JOBS, 0), 0
    try:
        while offset < end:
            records = await bus.read(JOBS, 0, offset, _READ)
            if not records:
                if bus.reach(JOBS, 0) >= end and not await bus.read(JOBS, 0, offset, 1):
                    return
                looks += 1
                if looks > _LOOKS:
                    raise LogFailed(f"the plan of job {job.id} cannot be read from offset {offset} to {end}")
                await subscription.wait(_LOOK_AGAIN_S)
                continue
            looks = 0
            for record in records:
                offset = record.offset + 1
                document = orjson.loads(unpack_record(record.frame).payload)
                if document["job"] != job.id or document["step"] != expected:
                    continue
                if after is not _ANY and document["after"] != after:
                    continue
                step = Step(record.offset, expected, document["entries"], document["next"])
                yield step
                expected, after = expected + 1, step.cursor
                if step.cursor is None:
                    return
    finally:
        subscription.close()


_ANY: Final = "*"
"""Matches any previous record, because that record was read earlier."""
