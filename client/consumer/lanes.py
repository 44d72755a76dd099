"""Handlers run in lanes: so many tasks, each taking the next message that may begin.

A task per message would cost more than all the rest, so a lane is one task that takes message after message. A
handler that never waits is done within one turn of the loop. Time-outs are watched by one task for all lanes, for the
same reason.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from duemq.client.consumer.book import Book
from duemq.client.consumer.message import Message

_WATCH_S = 0.05


@dataclass(slots=True, eq=False)
class Route:
    """A handler, how long it may take for one message (s), and how many it has done."""

    handler: Callable[[Message], Awaitable[object]]
    timeout_s: float
    done: int = 0


@dataclass(slots=True, eq=False)
class Work:
    """A message in hand, of so many bytes. `key`: what it shares its turn with; None where it shares none."""

    message: Message
    route: Route
    book: Book
    offset: int
    size: int = 0
    key: Hashable = None
    holds_key: bool = False


class Owner(Protocol):
    """Who is told what became of a message."""

    def done(self, work: Work) -> None:
        """Its handler has done it."""
        ...

    async def failed(self, work: Work, error: Exception) -> float | None:
        """Its handler failed: what was decided is durable now (None), or it is to be tried again here after so many
        s."""
        ...

    def released(self, work: Work) -> None:
        """It was not begun, or given up by a stop: somebody else will have it."""
        ...


@dataclass(slots=True, eq=False)
class _Lane:
    """`work`: what it has. `failing`: its handler has ended, and it is decided what becomes of it."""

    task: asyncio.Task[None] | None = None
    work: Work | None = None
    failing: bool = False
    timed_out: bool = False


@dataclass(slots=True)
class _Key:
    running: int = 0
    waiting: deque[Work] = field(default_factory=deque)


class Lanes:
    """`concurrency`: messages at once. `per_key`: messages of one key at once; None = any number."""

    def __init__(self, owner: Owner, concurrency: int, per_key: int | None) -> None:
        self._owner, self._per_key = owner, per_key
        self._lanes = [_Lane() for _ in range(concurrency)]
        self._ready: deque[Work] = deque()
        self._resting: deque[asyncio.Future[None]] = deque()
        self._keys: dict[Hashable, _Key] = {}
        self._suspended: dict[Work, asyncio.TimerHandle] = {}
        self._finished = asyncio.Event()

    async def run(self) -> None:
        """Until it is cancelled. A bug in the owner ends it with that error."""
        async with asyncio.TaskGroup() as group:
            for number, lane in enumerate(self._lanes):
                lane.task = group.create_task(self._run(lane), name=f"lane-{number}")
            group.create_task(self._watch(), name="time-outs")

    def put(self, works: Iterable[Work]) -> None:
        """These may begin, in this order."""
        before = len(self._ready)
        self._ready.extend(works)
        for _ in range(len(self._ready) - before):
            if not self._wake():
                break

    def _wake(self) -> bool:
        while self._resting:
            resting = self._resting.popleft()
            if not resting.done():
                resting.set_result(None)
                return True
        return False

    async def _run(self, lane: _Lane) -> None:
        # What is done here is done for each message: a look at a profile before and after a change is worth it.
        ready, limit, owner = self._ready, self._per_key, self._owner
        while True:
            if not ready:
                resting = asyncio.get_running_loop().create_future()
                self._resting.append(resting)
                await resting
                continue
            work: Work | None = ready.popleft()
            if limit is not None and work is not None and work.key is not None and not work.holds_key:
                work = self._enter(work, limit)
            while work is not None:
                again = None
                if work.book.closed:
                    owner.released(work)
                else:
                    lane.work = work
                    try:
                        await work.route.handler(work.message)
                    except (Exception, asyncio.CancelledError) as error:
                        again = await self._failed(lane, work, error)
                    else:
                        owner.done(work)
                    lane.work = None
                    if lane.timed_out:
                        self._absorb(lane)
                    if work.book.closed:
                        self._finished.set()
                work = self._after(work, again) if work.holds_key or again is not None else None

    async def _failed(self, lane: _Lane, work: Work, error: Exception | asyncio.CancelledError) -> float | None:
        """How many seconds later it is to be tried again; None if not."""
        if isinstance(error, asyncio.CancelledError):
            if not lane.timed_out:
                self._owner.released(work)
                raise error
            self._absorb(lane)
            error = TimeoutError(f"the handler took longer than {work.route.timeout_s:g} s")
        lane.failing = True
        try:
            return await self._owner.failed(work, error)
        finally:
            lane.failing = False

    def _absorb(self, lane: _Lane) -> None:
        """The lane's task was not cancelled by anybody else."""
        lane.timed_out = False
        if lane.task is not None:
            lane.task.uncancel()

    async def _watch(self) -> None:
        """Stop handlers that take too long. A lane does not look at the clock: here it is seen what stays."""
        loop = asyncio.get_running_loop()
        since: dict[_Lane, tuple[Work, float]] = {}
        while True:
            await asyncio.sleep(_WATCH_S)
            now = loop.time()
            for lane in self._lanes:
                work = lane.work
                if work is None or lane.failing:
                    since.pop(lane, None)
                elif lane not in since or since[lane][0] is not work:
                    since[lane] = work, now
                elif now - since[lane][1] >= work.route.timeout_s and not lane.timed_out and lane.task is not None:
                    lane.timed_out = True
                    lane.task.cancel()

    # --- keys -----------------------------------------------------------------------------------------------------

    def _enter(self, work: Work, limit: int) -> Work | None:
        key = self._keys.setdefault(work.key, _Key())
        if key.running >= limit:
            key.waiting.append(work)
            return None
        key.running += 1
        work.holds_key = True
        return work

    def _after(self, work: Work, again: float | None) -> Work | None:
        """What this lane does next: a message that waited for the same key."""
        if again is not None:
            self._suspended[work] = asyncio.get_running_loop().call_later(again, self._resume, work)
            return None
        if not work.holds_key:
            return None
        key = self._keys[work.key]
        if key.waiting:
            following = key.waiting.popleft()
            following.holds_key = True
            return following
        key.running -= 1
        if not key.running:
            del self._keys[work.key]
        return None

    def _resume(self, work: Work) -> None:
        del self._suspended[work]
        self._ready.appendleft(work)
        self._wake()

    # --- ending ---------------------------------------------------------------------------------------------------

    def release(self, books: Iterable[Book]) -> None:
        """Let go of what is not begun of these partitions."""
        for book in books:
            book.closed = True
        for key in self._keys.values():
            waiting, key.waiting = key.waiting, deque()
            for work in waiting:
                key.waiting.append(work) if not work.book.closed else self._owner.released(work)
        dropped = [work for work in self._ready if work.book.closed]
        kept = [work for work in self._ready if not work.book.closed]
        self._ready.clear()
        self._ready.extend(kept)
        for work in [work for work in self._suspended if work.book.closed]:
            self._suspended.pop(work).cancel()
            dropped.append(work)
        for work in dropped:
            self._owner.released(work)
            if (following := self._after(work, None)) is not None:
                self.put([following])

    async def finish(self, books: Iterable[Book], within_s: float) -> bool:
        """Wait until no handler has a message of these partitions; False if that takes longer."""
        books = set(books)
        try:
            async with asyncio.timeout(within_s):
                while any(lane.work is not None and lane.work.book in books for lane in self._lanes):
                    self._finished.clear()
                    await self._finished.wait()
        except TimeoutError:
            return False
        return True
