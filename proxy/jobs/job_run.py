"""Runs one job in the process that owns it: writes the plan, carries it out at a rate, and counts the outcomes.

A kill at any point is safe: the plan is in the log, and the job's item records up to which entry all outcomes are
counted, and which further entries may have been started. The next owner repeats those entries, and a shard never makes
a step's change twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Final

from duemq.background.loop import Loop
from duemq.bus.base import Bus
from duemq.cluster.admin.jobs import Jobs, JobTaken, take_over
from duemq.cluster.topics.job_plans import Step, append_step, read_plan
from duemq.model.errors import OutcomeUnknown, Rejected, Unavailable
from duemq.model.log.job import ENDED, Job, JobEvent, JobState, PlanPosition
from duemq.proxy.jobs.pacer import Pacer
from duemq.proxy.jobs.turns import Turns
from duemq.proxy.jobs.work import JobWork, Outcome

log = logging.getLogger(__name__)

_SAVE_S: Final = 1.0
_IN_FLIGHT: Final = 8  # batches at a time
_AHEAD_S: Final = 3.0  # how much work may start before the job's item is written again
_AHEAD: Final = 20_000  # entries; the same limit for a job without a rate
_FIRST_S: Final = 0.1  # the first pause before failed work is retried
_LONGEST_S: Final = 2.0  # the longest such pause
_LEAVE_S: Final = 2.0


class _Batch:
    def __init__(self, task: asyncio.Task[list[Outcome]], position: PlanPosition) -> None:
        self.task, self.position = task, position


class JobRun:
    """Runs `job`, which this process has claimed. `clock` returns epoch ms, `bus` the current log. `turns`: shared by
    all jobs."""

    def __init__(
        self, jobs: Jobs, job: Job, work: JobWork, bus: Callable[[], Bus], clock: Callable[[], int], turns: Turns
    ) -> None:
        self._jobs, self._job, self._work, self._bus, self._clock, self._turns = jobs, job, work, bus, clock, turns
        self._must = job.claimed  # another process may have started entries up to here
        self._sent = job.counted
        self._allowed = job.claimed
        self._saved = asyncio.Event()
        self._saving = self._loop("progress", self._save, _SAVE_S, (Unavailable, Rejected))

    async def run(self) -> None:
        """Run the job until it ends, is paused, or belongs to another process."""
        saving = asyncio.create_task(self._saving.run(), name=f"job {self._job.id}: progress")
        working = asyncio.create_task(self._work_off(), name=f"job {self._job.id}: work")
        try:
            await asyncio.wait((saving, working), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await saving  # raises JobTaken
        except JobTaken:
            return
        finally:
            for task in (saving, working):
                task.cancel()
            await asyncio.gather(saving, working, return_exceptions=True)
            if working.cancelled() or working.exception() is not None:
                await self._leave()
        if not working.cancelled():
            await working

    def _loop(
        self,
        part: str,
        turn: Callable[[], Awaitable[float | None]],
        first_s: float,
        expected: tuple[type[Exception], ...] = (Unavailable,),
        level: int = logging.WARNING,
    ) -> Loop:
        """A loop for a part of the work. It ends with any unexpected error."""
        return Loop(
            f"job {part}", turn, self._job.id, expected=expected, ends_on=(Exception,), first_s=first_s,
            longest_s=max(first_s, _LONGEST_S), quiet=1, level=level,
        )  # fmt: skip

    async def _work_off(self) -> None:
        await self._loop("work", self._try, _FIRST_S).run()
        await self._loop("end", self._finish, _SAVE_S, (Unavailable, Rejected), logging.DEBUG).run()

    async def _try(self) -> None:
        try:
            await self._plan()
            await self._execute()
        except Unavailable:
            raise
        except Rejected as error:  # for example for a filter that an older process wrote
            self._end(JobEvent.FAIL, f"{error.code}: {error.detail}")
        except Exception as error:
            log.exception("job %s fails", self._job.id, extra={"action": "job.failed"})
            self._end(JobEvent.FAIL, f"internal: {type(error).__name__}; the log of the server has more")

    def _end(self, event: JobEvent, reason: str = "") -> None:
        if self._job.state is JobState.RUNNING:
            self._job = self._job.after(event, self._clock(), reason)

    async def _finish(self) -> None:
        """Write the final state once nothing is in flight."""
        with suppress(JobTaken):
            await self._jobs.save(replace(self._job, claimed=self._job.counted), release=True)

    async def _leave(self) -> None:
        """Release the job, if possible, because this process stops: then another process continues it at once."""
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._jobs.save(self._job, release=True)
        except (JobTaken, Unavailable, Rejected, TimeoutError):
            log.info("job %s is left without a release", self._job.id, extra={"action": "job.leave"})

    # --- progress -------------------------------------------------------------------------------------------------

    async def _save(self) -> float:
        job = self._job
        rate = job.order.rate
        ahead = _AHEAD if rate is None else int(rate * _AHEAD_S) + 1
        goes_on = job.state is JobState.RUNNING and job.total is not None
        claimed = max(self._sent, self._must, job.counted + ahead) if goes_on else max(self._sent, self._must)
        saved = await self._jobs.save(replace(job, claimed=claimed))
        self._allowed = claimed
        if self._job.state not in ENDED:  # take over the requests of other processes, but not the counts
            self._job = replace(take_over(self._job, saved), claimed=claimed)
        self._saved.set()
        return _SAVE_S

    # --- the plan -------------------------------------------------------------------------------------------------

    async def _plan(self) -> None:
        """Write the rest of the plan."""
        while self._job.total is None and self._job.state is JobState.RUNNING:
            number, cursor, total, complete = 0, None, 0, False
            async with aclosing(read_plan(self._bus(), self._job, self._job.position)) as steps:
                async for step in steps:
                    number, cursor, total = step.number + 1, step.cursor, total + len(step.entries)
                    complete = cursor is None
            if complete:
                self._job = replace(self._job, total=total)
                return
            await self._write_plan(number, cursor)  # then read the plan: another process may have written it, too

    async def _write_plan(self, number: int, after: str | None) -> None:
        """Write the steps from `number` on. Each step begins where the previous one ended."""
        cursor = after
        while self._job.state is JobState.RUNNING:
            async with self._turns.place(self._job.by):
                page = await self._work.plan(self._job.order, self._job.created_at, cursor)
            cursor = page.cursor
            if page.entries or cursor is None:
                await append_step(self._bus(), self._job.id, number, after, cursor, page.entries)
                number, after = number + 1, cursor
            if cursor is None:
                return

    # --- the work -------------------------------------------------------------------------------------------------

    async def _execute(self) -> None:
        if self._job.total is None or not self._goes_on():
            return
        loop = asyncio.get_running_loop()
        pacer = Pacer(self._job.order.rate, loop.time())
        under_way: deque[_Batch] = deque()
        self._sent = self._job.counted
        try:
            async with aclosing(self._batches(pacer.batch)) as batches:
                async for step, start, entries in batches:
                    while len(under_way) >= _IN_FLIGHT or (under_way and under_way[0].task.done()):
                        await self._record_batch(under_way.popleft())
                    count = await self._may_begin(len(entries), under_way)
                    await asyncio.sleep(pacer.wait(count, loop.time()))
                    if not count or not self._goes_on():
                        break
                    self._sent += count
                    task = asyncio.create_task(
                        self._do(step.number, entries[:count]), name=f"job {self._job.id}: batch"
                    )
                    under_way.append(_Batch(task, PlanPosition(step.offset, step.number, start + count)))
                    if count < len(entries):
                        break
            while under_way:
                await self._record_batch(under_way.popleft())
        finally:
            self._must = max(self._must, self._sent)
            for batch in under_way:
                batch.task.cancel()
        if self._job.counted == self._job.total:
            self._end(JobEvent.FINISH)
        elif self._goes_on():
            self._end(JobEvent.FAIL, "a part of its plan is no longer in the log")

    async def _batches(self, size: int) -> AsyncGenerator[tuple[Step, int, Sequence[str]], None]:
        position = self._job.position
        async with aclosing(read_plan(self._bus(), self._job, position)) as steps:
            async for step in steps:
                first = position.counted if step.number == position.step else 0
                for start in range(first, len(step.entries), size):
                    yield step, start, step.entries[start : start + size]

    def _goes_on(self) -> bool:
        """Whether to continue. Entries that were started are always finished: until then the counts are unknown."""
        return self._job.state is JobState.RUNNING or self._sent < self._must

    async def _may_begin(self, count: int, under_way: deque[_Batch]) -> int:
        """Wait until the job's item allows `count` more entries to start. Returns how many may start, which is fewer
        than `count` if the job stops."""
        while self._job.state is JobState.RUNNING:
            if self._sent + count <= max(self._allowed, self._must):
                return count
            while under_way:  # the limit is relative to the counted entries
                await self._record_batch(under_way.popleft())
            self._saved.clear()
            self._saving.wake()
            await self._saved.wait()
        return min(count, max(self._must - self._sent, 0))

    async def _record_batch(self, batch: _Batch) -> None:
        outcomes = await batch.task
        self._job = self._job.with_outcomes(Counter(outcomes), batch.position)

    async def _do(self, step: int, entries: Sequence[str]) -> list[Outcome]:
        """The outcome of each entry; retries until all are known."""
        known: dict[int, Outcome] = {}

        async def ask() -> None:
            left = [at for at in range(len(entries)) if at not in known]
            async with self._turns.place(self._job.by):  # per attempt: a shard without a master keeps no place
                outcomes = await self._work.do(self._job, step, [entries[at] for at in left])
            known.update((at, one) for at, one in zip(left, outcomes, strict=True) if one is not None)
            if len(known) < len(entries):
                raise OutcomeUnknown(f"the outcomes of {len(entries) - len(known)} commands are not known yet")

        await self._loop("batch", ask, _FIRST_S, level=logging.INFO).run()
        return [known[at] for at in range(len(entries))]
