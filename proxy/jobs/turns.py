"""Places for the work of jobs in one process, assigned to callers in turn."""

from __future__ import annotations

from asyncio import Future, get_running_loop
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """`places`: how many requests of jobs may run at a time. A caller's first waiting request gets a place before the
    second waiting request of any other caller."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: dict[str, deque[Future[None]]] = {}  # by caller; the next caller comes first

    @asynccontextmanager
    async def place(self, caller: str) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            await self._wait(caller)
        try:
            yield
        finally:
            self._give_back()

    async def _wait(self, caller: str) -> None:
        turn = get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # the place was already given to this request
                self._give_back()
            raise

    def _give_back(self) -> None:
        while self._waiting:
            caller = next(iter(self._waiting))
            turns = self._waiting.pop(caller)
            turn = turns.popleft()
            if turns:
                self._waiting[caller] = turns  # after all other callers
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
