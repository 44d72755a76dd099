"""Bulk jobs as administrative state: a limited number of items. A new job reuses the item of the oldest ended job.

A job's item contains the id of the process that runs the job. This process writes the item every second or two, which
shows other processes that it is alive. If two processes take over a job at the same time, one of them fails because the
item's version has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from duemq.cluster.admin.log import AdminLog
from duemq.cluster.admin.state import ItemReader
from duemq.model.errors import Rejected
from duemq.model.log.job import ENDED, Job, JobEvent, JobState
from duemq.model.state_table import IllegalStep
from duemq.model.timing import shown

MAX_JOBS: Final = 40
"""How many jobs are known at most, including ended ones."""
MAX_OPEN: Final = 32
"""How many jobs may be running or paused."""
MAX_OPEN_OF_CALLER: Final = 4
"""The same limit for one caller. It does not apply if there are no keys and the server requires none."""

_KIND: Final = "jobs"
_TRIES: Final = 10  # the process that runs a job writes the item every second, perhaps at the same time


class JobTaken(Exception):
    """Another process runs the job."""


def take_over(job: Job, current: Job) -> Job:
    """The job, updated with the changes in `current` that processes other than its owner made."""
    return replace(job, state=current.state, ended_at=current.ended_at, by=current.by, reason=current.reason)


class Jobs:
    """`by_id` contains all known jobs, `versions` the versions of their items. `clock` returns epoch ms."""

    def __init__(self, admin: AdminLog, clock: Callable[[], int]) -> None:
        self.admin, self._clock = admin, clock
        self.by_id: dict[str, Job] = {}
        self.versions: dict[str, int] = {}
        self._slots: dict[str, str] = {}  # id -> name of the item
        self._reader = ItemReader(_KIND, Job.from_value)
        admin.on_change(self._on_change, _KIND)

    def _on_change(self) -> None:
        jobs = self._reader.read(self.admin.state)
        self.by_id = {job.id: job for job in jobs.values()}
        self._slots = {job.id: slot for slot, job in jobs.items()}
        self.versions = {job.id: self.admin.state.version_of(f"{_KIND}/{slot}") for slot, job in jobs.items()}

    @property
    def all_known(self) -> bool:
        """Whether this version of duemq can read all jobs."""
        return not self._reader.unreadable

    def listed(self) -> list[Job]:
        """All known jobs, newest first."""
        return sorted(self.by_id.values(), key=lambda job: (job.created_at, job.id), reverse=True)

    def find(self, id_: str) -> Job:
        """The job with this id. Raises Rejected `unknown_job`."""
        if (job := self.by_id.get(id_)) is None:
            raise Rejected("unknown_job", f"there is no job {shown(id_)}, or it ended long ago", "id")
        return job

    def begun(self, once: str) -> Job | None:
        """The job that was created with this Idempotency-Key, as long as it is known. Raises Rejected
        `idempotency_conflict` if its body differs."""
        key = once.partition(":")[0]
        for job in self.by_id.values():
            if job.once is not None and job.once.partition(":")[0] == key:
                if job.once != once:
                    detail = f"this Idempotency-Key created job {job.id} with another body"
                    raise Rejected("idempotency_conflict", detail, "Idempotency-Key", id=job.id)
                return job
        return None

    async def add(self, job: Job) -> Job:
        """Create a job, or return the job that was created with the same Idempotency-Key.

        Raises Rejected `too_many_jobs`, `idempotency_conflict`, and the errors of `AdminLog.change`.
        """
        while True:
            if job.once is not None and (known := self.begun(job.once)) is not None:
                return known
            slot = self._free_slot(job.by)
            try:
                await self.admin.change(f"{_KIND}/{slot}", job.value(), job.by, self._version_of_slot(slot))
                return job
            except Rejected as error:
                if error.code != "conflict":
                    raise

    def _free_slot(self, by: str) -> str:
        opened = [job.by for job in self.by_id.values() if job.state not in ENDED]
        if by and opened.count(by) >= MAX_OPEN_OF_CALLER:
            detail = f"{MAX_OPEN_OF_CALLER} jobs of this caller run or are paused, which is the limit"
            raise Rejected("too_many_jobs", detail)
        if len(opened) >= MAX_OPEN:
            raise Rejected("too_many_jobs", f"{MAX_OPEN} jobs run or are paused, which is the limit")
        taken = self._reader.unreadable.union(self._slots.values())
        free = next((slot for slot in map(str, range(MAX_JOBS)) if slot not in taken), None)
        if free is not None:
            return free
        over = [job for job in self.by_id.values() if not job.needs_work and job.state in ENDED]
        if not over:
            raise Rejected("too_many_jobs", f"there are {MAX_JOBS} jobs, and none has ended")
        return self._slots[min(over, key=lambda job: (job.ended_at, job.id)).id]

    def _version_of_slot(self, slot: str) -> int:
        return self.admin.state.version_of(f"{_KIND}/{slot}")

    async def tell(self, id_: str, event: JobEvent, by: str, reason: str = "") -> Job:
        """Pause, resume or cancel a job. Repeating the call does no harm. After a resume, the job belongs to the caller
        that resumed it.

        Raises Rejected `unknown_job`, `job_ended`.
        """
        for _ in range(_TRIES):
            job, version = self.find(id_), self.versions[id_]
            try:
                changed = job.after(event, self._clock(), reason)
            except IllegalStep:
                if job.state is _AFTER[event]:
                    return job
                raise Rejected("job_ended", f"job {id_} is {job.state}", "id") from None
            if event is JobEvent.RESUME:
                changed = replace(changed, by=by, reason="")
            try:
                await self._put(changed, by, version)
                return changed
            except Rejected as error:
                if error.code != "conflict":
                    raise
        raise Rejected("conflict", f"job {id_} was changed by others repeatedly")

    async def claim(self, job: Job, version: int, owner: str) -> Job:
        """Make a process the owner of a job. `version`: the version of the item that the process has read. Raises
        JobTaken, and the errors of `AdminLog.change`."""
        try:
            await self._put(claimed := replace(job, owner=owner), owner, version)
            return claimed
        except Rejected as error:
            if error.code != "conflict":
                raise
            raise JobTaken from error

    async def save(self, job: Job, *, release: bool = False) -> Job:
        """Write a job's progress as its owner; with `release`, give up the ownership. Returns the job, including
        requests that others made since the last call.

        Raises JobTaken if the job has another owner.
        """
        for _ in range(_TRIES):
            current = self.by_id.get(job.id)
            if current is None or current.owner != job.owner:
                raise JobTaken
            if job.state not in ENDED or current.state in ENDED:
                job = take_over(job, current)
            written = replace(job, owner="") if release else job
            try:
                await self._put(written, job.owner, self.versions[job.id])
                return written
            except Rejected as error:
                if error.code != "conflict":
                    raise
        raise JobTaken

    async def _put(self, job: Job, by: str, version: int) -> None:
        """Write an existing job. The number of its reasons limits how much the item can grow."""
        await self.admin.change(f"{_KIND}/{self._slots[job.id]}", job.value(), by, version, always=True)


_AFTER: Final = {
    JobEvent.PAUSE: JobState.PAUSED, JobEvent.RESUME: JobState.RUNNING, JobEvent.CANCEL: JobState.CANCELLED,
}  # fmt: skip
