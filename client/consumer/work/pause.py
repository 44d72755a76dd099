"""What waits while the consumer pauses, for what all its handlers need is away (`Pause`).

a handler raises Pause -> nothing begins -> after a while one message is tried again -> it pauses: half as long again
                                                                                     -> it ends: all go on
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from duemq.client.consumer.retry.policy import Pause, pause_s
from duemq.client.consumer.work.work import Work


class Pauses:
    """The messages that wait while a consumer pauses. `begin`: lets these messages begin, in this order, before all
    others; when the pause is over, `on` is False."""

    def __init__(self, begin: Callable[[list[Work]], None]) -> None:
        self._begin = begin
        self.on = False
        self.tried: Work | None = None
        """The message that was let begin to see whether the others may."""
        self._wait_s: float | None = None
        self._paused: deque[Work] = deque()
        self._backlog: deque[Work] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, work: Work, error: Pause, waiting: deque[Work]) -> float | None:
        """The handler of this message asked for a pause. Takes over what waits for a lane.

        Gives the time until a message is tried again (s), or None where a pause is under way.
        """
        if self.on and work is not self.tried:
            self._paused.append(work)
            return None
        self.on = True
        self._paused.appendleft(work)  # it was the first, and is tried again
        self._backlog.extendleft(reversed(waiting))
        waiting.clear()
        self._wait_s = pause_s(error, self._wait_s if work is self.tried else None)
        self.tried = None
        self._timer = asyncio.get_running_loop().call_later(self._wait_s, self._try)
        return self._wait_s

    def hold(self, works: Iterable[Work]) -> None:
        """Have these messages begin when the pause is over."""
        self._backlog.extend(works)

    def hold_first(self, work: Work) -> None:
        """Have this message begin before all others when the pause is over."""
        self._backlog.appendleft(work)

    def ended(self, work: Work) -> None:
        """The message that was tried has ended, and did not ask for a pause again."""
        if work.book.closed:  # its partition went to another member, perhaps before it began
            self._try()
        else:
            self._go_on()

    def _try(self) -> None:
        self.tried = self._paused.popleft() if self._paused else None
        if self.tried is None:
            self._go_on()
        else:
            self._begin([self.tried])

    def _go_on(self) -> None:
        works = [*self._paused, *self._backlog]
        self._paused.clear()
        self._backlog.clear()
        self.on, self.tried, self._wait_s = False, None, None
        self._begin(works)

    def release(self) -> list[Work]:
        """Let go of what belongs to partitions that are another member's by now."""
        foreign_works = [work for work in (*self._paused, *self._backlog) if work.book.closed]
        if foreign_works:
            self._paused = deque(work for work in self._paused if not work.book.closed)
            self._backlog = deque(work for work in self._backlog if not work.book.closed)
        return foreign_works

    def close(self) -> None:
        """Try nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
