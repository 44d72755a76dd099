"""Messages that wait while the consumer pauses because something that all handlers need is unreachable (`Pause`).

a handler raises Pause -> no message starts -> after a wait, one is retried -> it raises Pause: wait half as long again
                                                                          -> it ends otherwise: all messages continue
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from duemq.client.consumer.retry.policy import Pause, pause_s
from duemq.client.consumer.work.work import Work


class Pauses:
    """The messages that wait while a consumer pauses. `begin`: called to start messages in the given order, before all
    others. At the end of the pause, `on` is already False when it is called."""

    def __init__(self, begin: Callable[[list[Work]], None]) -> None:
        self._begin = begin
        self.on = False
        self.tried: Work | None = None
        """The message that was started to test whether the pause can end."""
        self._wait_s: float | None = None
        self._paused: deque[Work] = deque()
        self._backlog: deque[Work] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, work: Work, error: Pause, waiting: deque[Work]) -> float | None:
        """The handler of this message asked for a pause. `waiting`: messages that wait for a worker; they are moved out
        of it, to wait here.

        Returns the time until a message is retried (s), or None if the consumer is pausing already.
        """
        if self.on and work is not self.tried:
            self._paused.append(work)
            return None
        self.on = True
        self._paused.appendleft(work)  # the first message that asked for the pause is the one that is retried
        self._backlog.extendleft(reversed(waiting))
        waiting.clear()
        self._wait_s = pause_s(error, self._wait_s if work is self.tried else None)
        self.tried = None
        self._timer = asyncio.get_running_loop().call_later(self._wait_s, self._try)
        return self._wait_s

    def hold(self, works: Iterable[Work]) -> None:
        """Start these messages when the pause has ended."""
        self._backlog.extend(works)

    def hold_first(self, work: Work) -> None:
        """Start this message before all others when the pause has ended."""
        self._backlog.appendleft(work)

    def ended(self, work: Work) -> None:
        """The retried message has ended, and did not ask for another pause."""
        if work.tracker.closed:  # its partition moved to another member, perhaps before the message started
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
        """Drop the messages of partitions that have moved to another member, and return them."""
        foreign_works = [work for work in (*self._paused, *self._backlog) if work.tracker.closed]
        if foreign_works:
            self._paused = deque(work for work in self._paused if not work.tracker.closed)
            self._backlog = deque(work for work in self._backlog if not work.tracker.closed)
        return foreign_works

    def close(self) -> None:
        """Cancel the timer: no message is retried any more."""
        if self._timer is not None:
            self._timer.cancel()
