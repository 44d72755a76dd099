"""The progress of a shard, for requests that wait for its answers."""

from __future__ import annotations

import asyncio
from collections import deque
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from duemq.model.errors import Unavailable
from duemq.model.log.ledger import Answer, Entry


class TimedAnswer(NamedTuple):
    """The ledger's answer to a command, and its time (ms). `first_key`: see `Entry.named`."""

    answer: Answer
    at: int
    first_key: bytes | None = None


class Progress:
    """Publishes ledger entries to waiting requests, and keeps recent answers for late requests.

    `keep`: how many answers are kept. `most`: how many requests may wait; each takes a few KiB in total.
    """

    def __init__(self, keep: int = 100_000, most: int = 2_000) -> None:
        self.applied = 0
        self._number = -1  # number of the last published entry
        self._keep, self._most = keep, most
        self.recent: dict[int, TimedAnswer] = {}
        self._cycles: deque[list[int]] = deque()
        # Waiters by offset. `_offsets` is a heap of the keys, and for a while also of keys that no longer have waiters.
        self.waiters: dict[int, set[asyncio.Future[bool]]] = {}
        self.offsets: list[int] = []
        self._waiting = 0
        self._called = False  # see `call`
        self._demand: asyncio.Future[None] | None = None  # set while the shard waits for the first waiting request
        self._failure: Unavailable | None = None

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return self._waiting

    async def wait_for_waiter(self, timeout_s: float) -> None:
        """Wait, at most for `timeout_s`, until a request waits for an answer."""
        called, self._called = self._called, False
        if self._waiting or called:
            return
        loop = asyncio.get_running_loop()
        demand = self._demand = loop.create_future()
        timer = loop.call_later(timeout_s, self._release)  # a task or asyncio.timeout would cost more
        try:
            await demand
        finally:
            self._demand, self._called = None, False
            timer.cancel()

    def call(self) -> None:
        """End the shard's pause, because a request is about to append a command, and will wait for the answer once the
        command is durable."""
        self._called = True
        self._release()

    def _release(self) -> None:
        if self._demand is not None and not self._demand.done():
            self._demand.set_result(None)

    def publish(self, entry: Entry) -> None:
        """Wake the requests that wait for an entry's answers. Publishing the last entry again has no effect.

        One answer is kept per offset, because consecutive entries answer different commands. After a gap in the
        entries' numbers, or a step back, old answers are dropped, because another history may have answered the same
        commands differently.
        """
        if entry.number == self._number:
            return
        if entry.number != self._number + 1 or entry.base is not None:
            self.recent.clear()
            self._cycles.clear()
        self._number = entry.number
        if entry.answers:
            at = entry.at
            self.recent.update((offset, TimedAnswer(answer, at)) for offset, answer in entry.answers.items())
            self.recent.update(
                (offset, TimedAnswer(entry.answers[offset], at, key)) for offset, key in entry.named.items()
            )
            self._cycles.append(list(entry.answers))
            while len(self.recent) > self._keep and len(self._cycles) > 1:
                for offset in self._cycles.popleft():
                    del self.recent[offset]
        self.applied = entry.applied
        while self.offsets and self.offsets[0] < entry.applied:
            for future in self.waiters.pop(heappop(self.offsets), ()):
                self._waiting -= 1
                _tell(future, True)

    def fail(self, reason: Unavailable) -> None:
        """Fail all waiting requests: the shard has stopped, so no request will be answered any more."""
        self._failure = reason
        for futures in self.waiters.values():
            for future in futures:
                if not future.done():
                    future.set_exception(reason)
        self.waiters.clear()
        self.offsets.clear()
        self._waiting = 0

    def check(self) -> None:
        """Raises Unavailable if the shard has stopped, or if the limit of waiting requests is reached.

        Call it before appending a command and waiting for its answer: after the append it is too late to refuse.
        """
        if self._failure is not None:
            raise self._failure
        if self._waiting >= self._most:
            raise Unavailable(f"{self._waiting} requests wait for this shard already")

    async def wait_until_applied(self, offset: int, timeout_s: float) -> bool:
        """Wait until the command at `offset` is applied. Returns False after the time-out, or if too many requests
        wait.

        Raises Unavailable once the shard has stopped.
        """
        if offset < self.applied:
            return True
        if self._failure is not None:
            raise self._failure
        if self._waiting >= self._most:
            return False
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        self._enter(offset, future)
        timer = loop.call_later(max(timeout_s, 0), _tell, future, False)  # costs a third of asyncio.timeout
        try:
            return await future
        finally:
            timer.cancel()
            self._leave(offset, future)

    def _enter(self, offset: int, future: asyncio.Future[bool]) -> None:
        futures = self.waiters.get(offset)
        if futures is None:
            futures = self.waiters[offset] = set()
            heappush(self.offsets, offset)
        futures.add(future)
        self._waiting += 1
        self._release()

    def _leave(self, offset: int, future: asyncio.Future[bool]) -> None:
        futures = self.waiters.get(offset)
        if futures is None or future not in futures:
            return  # answered
        futures.remove(future)
        self._waiting -= 1
        if not futures:
            del self.waiters[offset]
            if len(self.offsets) > 2 * len(self.waiters):  # so rarely that the cost per waiter is constant
                self.offsets = list(self.waiters)
                heapify(self.offsets)

    def answer(self, offset: int) -> TimedAnswer | None:
        """The ledger's answer to an applied command; None if the command needed no answer, or was applied too long
        ago."""
        return self.recent.get(offset)


def _tell(future: asyncio.Future[bool], is_applied: bool) -> None:
    if not future.done():
        future.set_result(is_applied)
