"""Runs the jobs of a deployment that no other process runs."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from duemq.background.loop import Loop
from duemq.bus.base import Bus
from duemq.cluster.admin.api_keys import ApiKeys
from duemq.cluster.admin.jobs import Jobs, JobTaken
from duemq.cluster.topics.internal_topics import JOBS
from duemq.model.errors import Rejected, Unavailable
from duemq.model.log.job import ENDED, Job, JobEvent, JobState
from duemq.proxy.gateway.base import Gateway
from duemq.proxy.jobs.job_run import JobRun
from duemq.proxy.jobs.topic_work import TopicWork
from duemq.proxy.jobs.turns import Turns
from duemq.proxy.jobs.work import JobWork, MessageWork

log = logging.getLogger(__name__)

SILENT_S: Final = 5.0
"""An owner that has written nothing for this long is treated as dead. This does no harm if it is alive: see
`JobRun`."""

_LOOK_S: Final = 1.0
_PLACES: Final = 32  # concurrent requests of all jobs together
_KEPT_MS: Final = 600_000  # how long to keep plans: a new job's plan is in the log before the job is known here


class JobRunner:
    """Runs jobs. `clock` returns epoch ms. `most_redrives`: see `MessageWork`. `keys`: if the API key of a job's caller
    has ended, the job is paused."""

    def __init__(
        self, jobs: Jobs, gateway: Gateway, clock: Callable[[], int], most_redrives: int = 0,
        keys: ApiKeys | None = None,
    ) -> None:  # fmt: skip
        self._keys = keys
        self._jobs, self._gateway, self._clock = jobs, gateway, clock
        self._messages = MessageWork(gateway, most_redrives)
        self._topics = TopicWork(gateway, most_redrives)
        self.owner = secrets.token_hex(8)
        self._turns = Turns(_PLACES)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._seen: dict[str, tuple[int, float]] = {}  # by job: the version of its item, and when (s) it was first seen
        self._loop = Loop("jobs", self._check_jobs)
        jobs.admin.on_change(self._loop.wake)

    def work_of(self, job: Job) -> JobWork:
        return self._topics if job.order.source else self._messages

    def _bus(self) -> Bus:
        return self._gateway.bus

    async def run(self) -> None:
        """Run until cancelled. An unexpected failure of a job is logged, and does not affect others."""
        await self._jobs.admin.ready.wait()
        try:
            await self._loop.run()
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _check_jobs(self) -> float:
        for job in list(self._jobs.by_id.values()):
            if job.state is JobState.RUNNING and self._keys is not None and (why := self._keys.why_ended(job.by)):
                await self._pause(job, why)
            elif job.id not in self._running and self._is_free(job):
                self._begin(job.id)
        self._seen = {id_: seen for id_, seen in self._seen.items() if id_ in self._jobs.by_id}
        return _LOOK_S

    async def _pause(self, job: Job, why: str) -> None:
        """Pause a job. Every process does this; if it fails, the next check retries it."""
        with suppress(Rejected, Unavailable):
            await self._jobs.tell(job.id, JobEvent.PAUSE, "duemq", f"{why}: a resume makes its caller responsible")
            log.warning("job %s is paused: %s", job.id, why, extra={"action": "job.pause", "job": job.id})

    def _is_free(self, job: Job) -> bool:
        """Whether a job needs work and no other process runs it."""
        version, now = self._jobs.versions[job.id], asyncio.get_running_loop().time()
        if self._seen.get(job.id, (None, 0.0))[0] != version:
            self._seen[job.id] = version, now
        is_left = job.owner in ("", self.owner) or now - self._seen[job.id][1] >= SILENT_S
        return job.needs_work and is_left

    def _begin(self, id_: str) -> None:
        loop = Loop("job", partial(self._run, id_), id_, expected=(Unavailable, Rejected, JobTaken), quiet=1)
        task = self._running[id_] = asyncio.create_task(loop.run(), name=f"job {id_}")

        task.add_done_callback(lambda _: self._running.pop(id_))

    async def _run(self, id_: str) -> None:
        job = self._jobs.by_id.get(id_)
        if job is None or not self._is_free(job):
            return
        claimed = await self._jobs.claim(job, self._jobs.versions[id_], self.owner)
        log.info("job %s: %s runs here", id_, job.order.kind, extra={"action": "job.claim", "job": id_})
        await JobRun(self._jobs, claimed, self.work_of(job), self._bus, self._clock, self._turns).run()
        await self._trim()

    async def _trim(self) -> None:
        """Drop the plans that no job needs any more. Drops none while there is a job from another version of duemq,
        which may need any of them."""
        if not self._jobs.all_known:
            return
        bus = self._bus()
        needed = [job.position.offset for job in self._jobs.by_id.values() if job.state not in ENDED or job.needs_work]
        old = await bus.first_since(JOBS, 0, self._clock() - _KEPT_MS)
        await bus.trim(JOBS, 0, min([old, *needed]))
