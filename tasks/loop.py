"""Work in the background that is repeated: the one loop in which it pauses, logs its failures, counts them and ends."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from time import monotonic

from duemq.model.errors import DuemqError, Fatal, Unavailable
from duemq.tasks.stray_cancellation import own_cancellation_only

log = logging.getLogger(__name__)

_MOST_DOUBLINGS = 30

_running: set[Loop] = set()
_failures: Counter[str] = Counter()


class Loop:
    """Makes one `turn` after the other. A turn returns the seconds until the next one, or None at the end of the work.

    A turn that fails is made again, after pauses that double from `first_s` to `longest_s`; nothing shortens these.
    An outage begins with a failure and ends with `note_success`, or with a turn that succeeds. Each type of error is
    logged once in an outage, from the one after the first `quiet` failures on; so is the end.

    `name`: fixed, for it labels metrics; `of`: what it works for, in the log. An error that is none of `expected` is
    logged with its traceback. It ends the loop if it is Fatal, or if `ends_on_bugs`; `run` raises it then.
    `on_failure` is called with each error that does not end the loop.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], Awaitable[float | None]],
        of: str = "",
        *,
        expected: tuple[type[Exception], ...] = (Unavailable,),
        ends_on_bugs: bool = False,
        first_s: float = 0.1,
        longest_s: float = 5.0,
        quiet: int = 0,
        level: int = logging.WARNING,
        on_failure: Callable[[Exception], None] | None = None,
    ) -> None:
        self.name, self._turn = name, turn
        self._title = f"{name} of {of}" if of else name
        self._expected, self._ends_on_bugs, self._on_failure = expected, ends_on_bugs, on_failure
        self._first_s, self._longest_s = first_s, longest_s
        self._quiet, self._level = quiet, level
        self._awake = asyncio.Event()
        self._logged: set[type[Exception]] = set()  # in this outage
        self.failures = 0
        """Of this outage."""
        self.failing_since: float | None = None
        """When the outage began, by `monotonic` (s); None while all is well."""
        self.trouble: str | None = None
        """What the last failure of an outage said; None while all is well."""
        self.pulse = monotonic()
        """When its last turn began or succeeded, by `monotonic` (s)."""

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Work until cancelled, until `stop` is set, or until a turn returns None. `stop` ends pauses, not turns."""
        _running.add(self)
        try:
            while stop is None or not stop.is_set():
                self._awake.clear()
                self.pulse = monotonic()
                try:
                    with own_cancellation_only():
                        pause_s = await self._turn()
                except Exception as error:
                    await _pause(self._note_failure(error), stop)
                    continue
                self.note_success()
                if pause_s is None:
                    return
                await _pause(pause_s, stop or self._awake)
        finally:
            _running.discard(self)

    def wake(self) -> None:
        """Have the next turn begin at once, or after the one under way. Without effect after a failure, and for a loop
        that has a `stop`."""
        self._awake.set()

    def note_success(self) -> None:
        """End an outage. For turns that wait once they have succeeded."""
        self.pulse = monotonic()
        if self.failing_since is None:
            return
        if self._logged:
            seconds = self.pulse - self.failing_since
            log.info(
                "%s works again after %d failures in %.1f s", self._title, self.failures, seconds, extra=self._extra
            )
        self.failures, self.failing_since, self.trouble = 0, None, None
        self._logged.clear()

    def _note_failure(self, error: Exception) -> float:
        """The seconds until the next turn."""
        expected = isinstance(error, self._expected)
        if not expected and (self._ends_on_bugs or isinstance(error, Fatal)):
            raise error
        _failures[self.name] += 1
        pause_s = min(self._first_s * 2.0 ** min(self.failures, _MOST_DOUBLINGS), self._longest_s)
        self.failures += 1
        self.failing_since = self.failing_since or monotonic()
        self.trouble = str(error) if isinstance(error, DuemqError) else f"{type(error).__name__}: {error}"
        level = logging.DEBUG
        if type(error) not in self._logged and (self.failures > self._quiet or not expected):
            self._logged.add(type(error))
            level = self._level if expected else logging.ERROR
        log.log(
            level, "%s fails, and tries again: %s", self._title, self.trouble,
            exc_info=None if expected else error, extra=self._extra,
        )  # fmt: skip
        if self._on_failure is not None:
            self._on_failure(error)
        return pause_s

    @property
    def _extra(self) -> dict[str, str]:
        return {"action": "loop", "loop": self.name}


async def _pause(seconds: float, end: asyncio.Event | None) -> None:
    await asyncio.sleep(0)  # an event that is set makes nobody wait, and others need their turn
    if end is None:
        await asyncio.sleep(seconds)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await end.wait()


def loops() -> Iterable[Loop]:
    """Those that run in this process."""
    return tuple(_running)


def failure_counts() -> Counter[str]:
    """Failures since the start of the process, by the names of loops."""
    return _failures.copy()
