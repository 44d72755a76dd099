"""Runs handlers in a fixed number of tasks, the workers, each of which takes the next message that may start.

A task per message would cost more than everything else, so a worker is one task that takes message after message. A
handler that never waits finishes within one turn of the loop. A timer per message would be too expensive as well, so
one task watches the timeouts of all workers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from duemq.client.consumer.retry.policy import Pause
from duemq.client.consumer.work.offset_tracker import OffsetTracker
from duemq.client.consumer.work.pause import Pauses
from duemq.client.consumer.work.pool import Owner
from duemq.client.consumer.work.work import Work

_WATCH_S = 0.05
_KEPT = 4  # messages per suspended key that wait in memory


@dataclass(slots=True, eq=False)
class _Worker:
    """A task that runs handlers. `work`: its message. `failing`: the handler raised an error, which is being
    processed."""

    task: asyncio.Task[None] | None = None
    work: Work | None = None
    failing: bool = False
    timed_out: bool = False


@dataclass(slots=True)
class _Key:
    """Messages with one key. `failing`: those that failed and will be retried in this process, until they end."""

    running: int = 0
    waiting: deque[Work] = field(default_factory=deque)
    failing: set[Work] = field(default_factory=set)


class WorkerPool:
    """The workers of one consumer. `concurrency`: how many messages are handled at once. `per_key`: how many of those
    may have the same key; None = no limit."""

    def __init__(self, owner: Owner, concurrency: int, per_key: int | None) -> None:
        self._owner, self._per_key = owner, per_key
        self._workers = [_Worker() for _ in range(concurrency)]
        self._ready: deque[Work] = deque()
        self._resting: deque[asyncio.Future[None]] = deque()
        self.keys: dict[Hashable, _Key] = {}
        """Keys of messages that are being handled, are waiting for their key, or will be retried."""
        self._suspended: dict[Work, asyncio.TimerHandle] = {}
        self._pauses = Pauses(self._begin)
        self._finished = asyncio.Event()
        self._whole: asyncio.Task[None] | None = None

    @property
    def paused(self) -> bool:
        """Whether the consumer pauses: no message starts except the one that is retried."""
        return self._pauses.on

    async def run(self) -> None:
        """Run until cancelled. If the owner raises an error, or a worker ends, it raises that error."""
        self._whole = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as group:
                for number, worker in enumerate(self._workers):
                    worker.task = group.create_task(self._lasting(self._run, worker), name=f"worker-{number}")
                group.create_task(self._lasting(self._watch), name="time-outs")
        finally:
            self._pauses.close()

    async def _lasting(self, work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Run a task that only a stop may end. A task group treats a cancelled child as finished, so a stray cancel
        becomes an error here."""
        try:
            await work(*arguments)
        except asyncio.CancelledError as error:
            if self._ending:
                raise
            raise RuntimeError("a task of the consumer was cancelled, but not by the consumer") from error

    @property
    def _ending(self) -> bool:
        return self._whole is not None and self._whole.cancelling() > 0

    def put(self, works: Iterable[Work]) -> None:
        """Let these messages start, in this order."""
        if self._pauses.on:
            self._pauses.hold(works)
            return
        before = len(self._ready)
        self._ready.extend(works)
        self._wake(len(self._ready) - before)

    def _begin(self, works: list[Work]) -> None:
        """Start these messages next: the one retried to test a pause, or, at the end of the pause, all that waited."""
        self._ready.extendleft(reversed(works))
        self._wake(len(works))
        if not self._pauses.on:
            self._owner.resumed()

    def _wake(self, count: int) -> None:
        """Wake up to `count` idle workers."""
        while count and self._resting:
            resting = self._resting.popleft()
            if not resting.done():
                resting.set_result(None)
                count -= 1

    async def _run(self, worker: _Worker) -> None:
        # This runs for each message: profile it before and after a change.
        ready, limit, owner, pauses = self._ready, self._per_key, self._owner, self._pauses
        while True:
            if not ready:
                if self._ending:  # the handler may have swallowed the CancelledError
                    raise asyncio.CancelledError
                resting = asyncio.get_running_loop().create_future()
                self._resting.append(resting)
                await resting
                continue
            work: Work | None = ready.popleft()
            if limit is not None and work is not None and work.key is not None and not work.holds_key:
                work = self._enter(work, limit)
            while work is not None:
                stays = False
                if work.tracker.closed:
                    owner.released(work)
                else:
                    worker.work = work
                    try:
                        await work.route.handler(work.message)
                    except BaseException as error:
                        stays = await self._handle_failure(worker, work, error)
                    else:
                        owner.done(work)
                    worker.work = None
                    if work.tracker.closed:
                        self._finished.set()
                    if worker.timed_out:
                        self._clear_cancel(worker)
                if work is pauses.tried:
                    pauses.ended(work)
                work = self._following(work) if work.holds_key and not stays else None

    async def _handle_failure(self, worker: _Worker, work: Work, error: BaseException) -> bool:
        """Process a handler's error. Returns whether the message stays in hand to be retried in this process."""
        if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
            raise error  # these end the program, or the event loop is closed
        late = worker.timed_out
        worker.failing = True
        try:
            self._clear_cancel(worker)
            if isinstance(error, asyncio.CancelledError):
                if work.tracker.closed and not late:  # see `release`
                    self._owner.released(work)
                    return False
                error = _cancel_error(error, work.route.timeout_s if late else None)
            if isinstance(error, Pause):
                return self._pause(work, error)
            again = await self._owner.failed(work, error)
        except BaseException:
            worker.work = None
            self._finished.set()
            self._owner.released(work)
            raise
        finally:
            worker.failing = False
        if again is None:
            return False
        self._suspended[work] = asyncio.get_running_loop().call_later(again, self._resume, work)
        if work.holds_key:
            key = self.keys[work.key]
            key.failing.add(work)
            while len(key.waiting) > _KEPT:
                self._owner.set_aside(key.waiting.pop())
        return True

    def _clear_cancel(self, worker: _Worker) -> None:
        """Let the worker continue after a cancel, unless the pool is being stopped."""
        worker.timed_out = False
        if self._ending:
            raise asyncio.CancelledError
        while worker.task is not None and worker.task.cancelling():
            worker.task.uncancel()

    def _pause(self, work: Work, error: Pause) -> bool:
        if work.tracker.closed:
            self._owner.released(work)
            return False
        if (wait_s := self._pauses.add(work, error, self._ready)) is not None:
            self._owner.pausing(work, error, wait_s)
        return True

    async def _watch(self) -> None:
        """Cancel handlers that exceed their timeouts. Workers do not check the clock: this task does it for all."""
        loop = asyncio.get_running_loop()
        since: dict[_Worker, tuple[Work, float]] = {}
        while True:
            await asyncio.sleep(_WATCH_S)
            now = loop.time()
            for worker in self._workers:
                work = worker.work
                if work is None or worker.failing:
                    since.pop(worker, None)
                elif worker not in since or since[worker][0] is not work or _is_queued(work):
                    since[worker] = work, now
                elif (
                    now - since[worker][1] >= work.route.timeout_s and not worker.timed_out and worker.task is not None
                ):
                    worker.timed_out = True
                    worker.task.cancel()

    def saved(self) -> None:
        """See `Pool`. Does nothing, because no handler waits until positions are stored."""

    # --- keys -----------------------------------------------------------------------------------------------------

    def is_free(self, key: Hashable) -> bool:
        """Whether no message waits for the key."""
        state = self.keys.get(key)
        return state is None or not (state.failing or state.waiting)

    def withdraw(self, keys: Collection[Hashable]) -> None:
        """Set aside messages with these keys that have not started: earlier messages must be read again and handled
        first."""
        works = list(self._ready)
        self._ready.clear()
        for work in works:
            if work.key in keys and not work.holds_key:
                self._owner.set_aside(work)
            else:
                self._ready.append(work)

    def _enter(self, work: Work, limit: int) -> Work | None:
        key = self.keys.get(work.key)
        if work.key in work.tracker.aside.keys or (key and key.failing and len(key.waiting) >= _KEPT):
            self._owner.set_aside(work)
            return None
        if key is None:
            key = self.keys[work.key] = _Key()
        if key.running >= limit:
            key.waiting.append(work)
            return None
        key.running += 1
        work.holds_key = True
        return work

    def _following(self, work: Work) -> Work | None:
        """The worker's next message: one that waited for the same key. None if no message may follow now."""
        key = self.keys[work.key]
        key.failing.discard(work)
        if key.waiting:
            following = key.waiting.popleft()
            following.holds_key = True
            if not self._pauses.on:
                return following
            self._pauses.hold([following])
            return None
        key.running -= 1
        if not key.running:
            del self.keys[work.key]
        return None

    def _resume(self, work: Work) -> None:
        del self._suspended[work]
        if self._pauses.on:
            self._pauses.hold_first(work)
            return
        self._ready.appendleft(work)
        self._wake(1)

    # --- ending ---------------------------------------------------------------------------------------------------

    def release(self, trackers: Iterable[OffsetTracker]) -> None:
        """Drop the messages of these partitions whose handlers have not started."""
        for tracker in trackers:
            tracker.closed = True
        for worker in self._workers:
            if (
                (work := worker.work) is not None
                and work.tracker.closed
                and _is_queued(work)
                and worker.task is not None
            ):
                worker.task.cancel()
        for key in self.keys.values():
            waiting, key.waiting = key.waiting, deque()
            for work in waiting:
                key.waiting.append(work) if not work.tracker.closed else self._owner.released(work)
        dropped = [work for work in self._ready if work.tracker.closed]
        survivors = [work for work in self._ready if not work.tracker.closed]
        self._ready.clear()
        self._ready.extend(survivors)
        for work in [work for work in self._suspended if work.tracker.closed]:
            self._suspended.pop(work).cancel()
            dropped.append(work)
        dropped += self._pauses.release()
        for work in dropped:
            self._owner.released(work)
            if work is self._pauses.tried:
                self._pauses.ended(work)
            if work.holds_key and (following := self._following(work)) is not None:
                self.put([following])

    async def finish(self, trackers: Iterable[OffsetTracker], within_s: float) -> bool:
        """Wait until no handler is running for these partitions; False after `within_s`."""
        trackers = set(trackers)
        try:
            async with asyncio.timeout(within_s):
                while any(worker.work is not None and worker.work.tracker in trackers for worker in self._workers):
                    self._finished.clear()
                    await self._finished.wait()
        except TimeoutError:
            return False
        return True


def _cancel_error(error: asyncio.CancelledError, timeout_s: float | None) -> Exception:
    """The error to report for a CancelledError that a handler raised, other than during a stop."""
    if timeout_s is not None:
        return TimeoutError(f"the handler took longer than {timeout_s:g} s")
    cancelled = RuntimeError("the handler awaited something that was cancelled")
    cancelled.__cause__ = error
    return cancelled


def _is_queued(work: Work) -> bool:
    queued = work.route.queued
    return queued is not None and queued(work.message)
