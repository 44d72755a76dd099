"""Repeated background work: the shared loop that pauses, reports failures, and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import TypedDict, Unpack

from duemq.background.outage import Outage
from duemq.background.stray_cancellation import own_cancellation_only
from duemq.model.errors import Fatal, Unavailable

_LEAST_S = 1.0  # the minimum pause between a failure and an urgent turn

_running: set[Loop] = set()


class OutageOptions(TypedDict, total=False):
    """See `Outage`."""

    first_s: float
    longest_s: float
    quiet: int
    level: int


class Loop:
    """Runs `turn` repeatedly. A turn returns the seconds until the next one, or None: then the next one starts after
    `every_s` seconds, or, without `every_s`, the work has ended.

    After a failure, the next turn starts after the pause that `Outage` prescribes; only an urgent `wake` shortens that
    pause, to a second. The outage ends with a successful turn, or with `record_success`.

    `expected`: errors that are not bugs. Among other errors, those in `ends_on` end the loop, and `run` raises them.
    `on_failure` is called with each error that does not end it.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], Awaitable[float | None]],
        of: str = "",
        *,
        expected: tuple[type[Exception], ...] = (Unavailable,),
        ends_on: tuple[type[Exception], ...] = (Fatal,),
        every_s: float | None = None,
        delay_s: float = 0.0,
        on_failure: Callable[[Exception], None] | None = None,
        **pace: Unpack[OutageOptions],
    ) -> None:
        """`delay_s`: the delay before the first turn. `name`, `of` and `pace` are for the loop's outages: see
        `Outage`."""
        self.name, self._turn = name, turn
        self._expected, self._ends_on, self._on_failure = expected, ends_on, on_failure
        self._every_s, self._delay_s = every_s, delay_s
        self._awake, self._urgent = asyncio.Event(), asyncio.Event()
        self.outage = Outage(name, of, **pace)
        self.pulse = monotonic()
        """When the last turn started or succeeded, by `monotonic` (s)."""

    @property
    def trouble(self) -> str | None:
        """The text of the last failure; None if there is none."""
        return self.outage.trouble

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Work until cancelled, until `stop` is set, or until the work has ended. `stop` ends pauses, not turns."""
        end = stop or asyncio.Event()
        ending = asyncio.create_task(end.wait(), name=f"end of {self.name}") if stop else None
        if ending is not None:
            ending.add_done_callback(lambda _: self.wake(urgent=True))
        _running.add(self)
        try:
            await _pause(self._delay_s, self._awake)
            while not end.is_set():
                self._awake.clear()
                self._urgent.clear()
                self.pulse = monotonic()
                try:
                    with own_cancellation_only():
                        pause_s = await self._turn()
                except Exception as error:
                    pause_s = self._record_failure(error)
                    least_s = min(pause_s, _LEAST_S)
                    await _pause(least_s, end)
                    await _pause(pause_s - least_s, self._urgent)
                    continue
                self.record_success()
                if pause_s is None and (pause_s := self._every_s) is None:
                    return
                await _pause(pause_s, self._awake)
        finally:
            _running.discard(self)
            if ending is not None:
                ending.cancel()

    def wake(self, *, urgent: bool = False) -> None:
        """Start the next turn at once, or right after the current one. After a failure, only an `urgent` call shortens
        the pause."""
        self._awake.set()
        if urgent:
            self._urgent.set()

    def record_success(self) -> None:
        """End an outage during a turn. It is for turns that keep waiting after they have succeeded."""
        self.pulse = monotonic()
        self.outage.record_success()

    def _record_failure(self, error: Exception) -> float:
        bug = not isinstance(error, self._expected)
        if bug and isinstance(error, self._ends_on):
            raise error
        pause_s = self.outage.record_failure(error, bug=bug)
        if self._on_failure is not None:
            self._on_failure(error)
        return pause_s


async def _pause(seconds: float, end: asyncio.Event) -> None:
    await asyncio.sleep(0)  # waiting for a set event yields to no other task
    if seconds > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await end.wait()


def loops() -> tuple[Loop, ...]:
    """The loops that run in this process."""
    return tuple(_running)
