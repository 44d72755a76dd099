"""Work of a shard that fails and is tried again: what went wrong is logged, counted, and shown until it succeeds."""

from __future__ import annotations

import logging
from collections.abc import Callable

from duemq.model.errors import DuemqError
from duemq.model.import_command import cut

log = logging.getLogger(__name__)


class Trouble:
    """The failures of one kind of work. `reason`: what went wrong the last time, None after a success."""

    def __init__(self, shard: int, work: str, first_s: float, longest_s: float, count: Callable[[], None]) -> None:
        """`work`: as a log calls it. The pauses before another try grow from `first_s` to `longest_s`."""
        self._shard, self._work, self._count = shard, work, count
        self._first_s, self._longest_s = first_s, longest_s
        self._failures = 0
        self.reason: str | None = None

    def clear(self) -> None:
        self._failures, self.reason = 0, None

    def note_failure(self, error: Exception) -> float:
        """Returns the seconds until the next try. What nobody foresaw is logged with its traceback."""
        pause = min(self._first_s * 2.0 ** min(self._failures, 30), self._longest_s)
        self._failures += 1
        self._count()
        text = str(error) if isinstance(error, DuemqError) else f"{type(error).__name__}: {error}"
        self.reason = cut(f"shard {self._shard}: {self._work} fails: {text}")
        log.log(
            logging.WARNING if isinstance(error, DuemqError) else logging.ERROR,
            "%s; next try in %.0f s", self.reason, pause,
            exc_info=None if isinstance(error, DuemqError) else error,
            extra={"action": self._work, "shard": self._shard},
        )  # fmt: skip
        return pause
