"""How far a shard has come, for those who wait for its answers."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from duemq.model.errors import Unavailable
from duemq.model.ledger import Answer, Entry


class Answered(NamedTuple):
    """What the ledger said of a command, and when (ms)."""

    answer: Answer
    at: int


class Progress:
    """Publishes ledger entries to waiting requests. Keeps the answers of recent cycles for those who come late."""

    def __init__(self, keep: int = 100_000) -> None:
        self.applied = 0
        self._keep = keep
        self._recent: dict[int, Answered] = {}
        self._cycles: deque[list[int]] = deque()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._asked = asyncio.Event()
        self._broken: Unavailable | None = None

    async def asked(self, timeout_s: float) -> None:
        """Wait until somebody waits for an answer, or for so long."""
        self._asked.clear()
        if any(not future.done() for _, future in self._waiting):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._asked.wait()

    def publish(self, entry: Entry) -> None:
        if entry.answers:
            at = entry.at
            self._recent.update((offset, Answered(answer, at)) for offset, answer in entry.answers.items())
            self._cycles.append(list(entry.answers))
            while len(self._recent) > self._keep and len(self._cycles) > 1:
                for offset in self._cycles.popleft():
                    del self._recent[offset]
        self.applied = entry.applied
        if self._waiting:
            still = []
            for offset, future in self._waiting:
                if future.done():
                    continue
                if offset < entry.applied:
                    future.set_result(None)
                else:
                    still.append((offset, future))
            self._waiting = still

    def fail(self, reason: Unavailable) -> None:
        """The shard stopped: nobody will be answered any more."""
        self._broken = reason
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(reason)
        self._waiting.clear()

    async def reached(self, offset: int, timeout_s: float) -> bool:
        """Wait until the command at `offset` is applied; False if that takes longer. Raises Unavailable."""
        if offset < self.applied:
            return True
        if self._broken is not None:
            raise self._broken
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((offset, future))
        self._asked.set()
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        return True

    def answer(self, offset: int) -> Answered | None:
        """What the ledger said of an applied command; None if it needed no answer, or long ago."""
        return self._recent.get(offset)
