"""Jobs on shards that are a dictionary, run by processes that are killed at any call: their memory is lost, and their
last call was executed or not."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import pytest

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.admin.jobs import Jobs
from duemq.cluster.admin.log import AdminLog
from duemq.cluster.shards.shard_reader import MessageState, Query
from duemq.cluster.topics.internal_topics import create_logs
from duemq.model.errors import OutcomeUnknown, Unavailable
from duemq.model.log.job import Job, Order, PlanPosition, new_id
from duemq.model.log.ledger import Answer
from duemq.model.messages.message import REDRIVE, Terms
from duemq.proxy.gateway.base import ChangeOutcome, Gateway, MessagePage
from duemq.proxy.jobs import job_run, pacer, runner, work
from duemq.proxy.jobs.runner import JobRunner

NOW = 1_000_000
T = TypeVar("T")


@dataclass
class Letter:
    """A dead letter. `redriven`: how often a job's command was carried out."""

    redrives: int = 0
    state: str = "dead"
    tag: str = ""
    redriven: int = 0


@dataclass
class Shards:
    """All shards of the deployment: each command is decided at once, by the rules of `Cycle`."""

    letters: dict[str, Letter] = field(default_factory=dict)
    commands: int = 0
    others: Callable[[], None] = lambda: None  # what others do before each command

    def decide(self, id_: str, terms: Terms) -> Answer:
        self.commands += 1
        letter = self.letters[id_]
        job = terms.tag.partition("/")[0]
        if letter.tag.partition("/")[0] == job:
            return Answer.REPEATED if letter.tag == terms.tag else Answer.CHANGED_BEFORE
        if letter.state != "dead":
            return Answer.NOT_DEAD
        if terms.most_redrives and letter.redrives >= terms.most_redrives:
            return Answer.EXHAUSTED
        letter.state, letter.tag = "pending", terms.tag
        letter.redrives += 1
        letter.redriven += 1
        return Answer.OK


class Process:
    """One process. `kill_at`: the number of the call at which it is killed, `carried_out`: whether that one has its
    effect still; None: it lives."""

    def __init__(
        self, log: MemoryLog, shards: Shards, rng: random.Random, kill_at: int | None, carried_out: bool
    ) -> None:
        self.shards, self.rng, self.kill_at, self.carried_out = shards, rng, kill_at, carried_out
        self.calls = 0
        self.dead = asyncio.Event()
        self._bus = MemoryBus(log)
        for name in ("append", "read", "trim"):
            setattr(self._bus, name, self._guarded(getattr(self._bus, name)))
        self.admin = AdminLog(lambda: self._bus, lambda: NOW)
        self.jobs = Jobs(self.admin, lambda: NOW)
        self.runner = JobRunner(self.jobs, cast(Gateway, self), lambda: NOW, 3)

    @property
    def bus(self) -> MemoryBus:
        return self._bus

    def _guarded(self, call: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        async def guarded(*args: Any) -> T:
            if self.dead.is_set():
                await asyncio.Event().wait()
            self.calls += 1
            if self.calls == self.kill_at:
                if self.carried_out:
                    await call(*args)
                self.dead.set()
                await asyncio.Event().wait()
            return await call(*args)

        return guarded

    async def find(self, query: Query) -> MessagePage:
        async def find() -> MessagePage:
            ids = sorted(id_ for id_, letter in self.shards.letters.items() if letter.state == "dead")
            ids = [id_ for id_ in ids if id_ > (query.cursor or "")][: query.limit]
            states = [MessageState(id_, "dead", "orders", 5, dead_at=10) for id_ in ids]
            return MessagePage(states, ids[-1] if len(ids) == query.limit else None)

        return await self._guarded(find)()

    async def change(
        self, kind: int, refs: Sequence[str], due: object = 0, *, terms: Terms | None = None
    ) -> list[ChangeOutcome]:
        assert kind == REDRIVE and terms is not None

        async def change() -> list[ChangeOutcome]:
            await asyncio.sleep(0.001)
            luck = self.rng.random()
            if luck < 0.05:
                raise Unavailable("no leader")
            outcomes: list[ChangeOutcome] = []
            for id_ in refs:
                self.shards.others()
                answer = self.shards.decide(id_, terms)
                outcomes.append(ChangeOutcome(id_, None if self.rng.random() < 0.05 else answer))
            if luck < 0.1:
                raise OutcomeUnknown("the answer was lost")
            return outcomes

        return await self._guarded(change)()


def hurry(patch: pytest.MonkeyPatch) -> None:
    """Steps, batches and waits so small that a job of some dozen messages has many of each."""
    patch.setattr(work, "MAX_LIMIT", 7)
    patch.setattr(pacer, "_MOST", 3)
    patch.setattr(job_run, "_AHEAD", 8)
    patch.setattr(job_run, "_SAVE_S", 0.01)
    patch.setattr(job_run, "_LEAVE_S", 0.001)
    patch.setattr(job_run, "_FIRST_S", 0.002)
    patch.setattr(job_run, "_LONGEST_S", 0.002)
    patch.setattr(runner, "_LOOK_S", 0.01)
    patch.setattr(runner, "SILENT_S", 0.08)


class World:
    """A deployment. `others`: what everybody else does to the letters."""

    def __init__(self, seed: int, count: int = 25) -> None:
        self.rng, self.log, self.shards = random.Random(seed), MemoryLog(lambda: NOW), Shards()
        for number in range(count):
            self.shards.letters[f"{number:032d}"] = Letter(self.rng.choice((0, 0, 0, 1, 3)))
        self.shards.others = self.meddle

    def meddle(self) -> None:
        """Letters that were redriven are delivered or die again; a colleague redrives some by hand."""
        letter = self.rng.choice(list(self.shards.letters.values()))
        if letter.state == "pending":
            letter.state = self.rng.choice(("pending", "dead", "delivered"))
        elif letter.state == "dead" and not letter.tag and self.rng.random() < 0.1:
            letter.state = "pending"

    @asynccontextmanager
    async def process(self, kill_at: int | None = None, carried_out: bool = False) -> AsyncIterator[Process]:
        process = Process(self.log, self.shards, self.rng, kill_at, carried_out)
        await create_logs(process.bus, 1)
        tasks = [
            asyncio.create_task(process.admin.run(), name="admin"),
            asyncio.create_task(process.runner.run(), name="jobs"),
        ]  # fmt: skip
        try:
            yield process
        finally:
            process.dead.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def begin(self, process: Process, rate: float | None = None) -> Job:
        await process.admin.ready.wait()
        order = Order("redrive", {"dead_from": 0}, rate)
        return await process.jobs.add(Job(new_id(NOW), order, NOW, "me", 0, PlanPosition(0)))

    async def wait(self, process: Process, id_: str) -> Job:
        """The job once no process works on it any more; or as it is when the process is killed."""
        async with asyncio.timeout(20):
            while not process.dead.is_set() and ((job := process.jobs.by_id.get(id_)) is None or job.needs_work):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        return process.jobs.by_id[id_]

    def check(self, job: Job) -> None:
        """Each letter was redriven once at most, and the counts are the truth."""
        letters = self.shards.letters.values()
        assert max(letter.redriven for letter in letters) <= 1, "redriven twice"
        assert job.done == sum(letter.redriven for letter in letters), (job, Counter(one.redriven for one in letters))
        assert job.counted == (job.total if job.state == "done" else job.counted)
