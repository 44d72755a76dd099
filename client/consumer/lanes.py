"""Handlers run in lanes: so many tasks, each taking the next message that may begin.

A task per message would cost more than all the rest, so a lane is one task that takes message after message. A
handler that never waits is done within one turn of the loop. Time-outs are watched by one task for all lanes, for the
same reason.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from duemq.client.consumer.book import Book
from duemq.client.consumer.message import Message

_WATCH_S = 0.05


@dataclass(frozen=True, slots=True)
class Route:
    """A handler, and how long it may take for one message (s)."""

    handler: Callable[[Message], Awaitable[object]]
    timeout_s: float


@dataclass(slots=True, eq=False)
class Work:
    """A message in hand. `key`: what it shares its turn with; None where it shares none."""

    message: Message
    route: Route
    book: Book
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


@dataclass(slots=True)
class _Lane:
    task: asyncio.Task[None] | None = None
    deadline: float = math.inf
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
        self.running = 0

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
        ready, limit = self._ready, self._per_key
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
                again = await self._handle(lane, work)
                work = self._after(work, again)

    async def _handle(self, lane: _Lane, work: Work) -> float | None:
        """How many seconds later it is to be tried again; None if not."""
        book = work.book
        if book.closed:
            self._owner.released(work)
            return None
        self.running += 1
        book.running += 1
        try:
            error = await self._call(lane, work)
            if error is not None:
                return await self._owner.failed(work, error)
            self._owner.done(work)
            return None
        finally:
            self.running -= 1
            book.running -= 1
            if book.closed:
                self._finished.set()

    async def _call(self, lane: _Lane, work: Work) -> Exception | None:
        """What the handler ended with."""
        timeout_s = work.route.timeout_s
        lane.deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            await work.route.handler(work.message)
        except asyncio.CancelledError:
            if not lane.timed_out:
                self._owner.released(work)
                raise
            return TimeoutError(f"the handler took longer than {timeout_s:g} s")
        except Exception as error:
            return error
        finally:
            lane.deadline = math.inf
            if lane.timed_out:
                lane.timed_out = False
                if lane.task is not None:
                    lane.task.uncancel()
        return None

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_WATCH_S)
            now = loop.time()
            for lane in self._lanes:
                if lane.deadline <= now and not lane.timed_out and lane.task is not None:
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
        books = list(books)
        try:
            async with asyncio.timeout(within_s):
                while any(book.running for book in books):
                    self._finished.clear()
                    await self._finished.wait()
        except TimeoutError:
            return False
        return True
