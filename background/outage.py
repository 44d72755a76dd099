"""Handles failures of repeated work: the pause before a retry, one log line, and counters."""

from __future__ import annotations

import logging
from collections import Counter
from time import monotonic

from duemq.model.errors import DuemqError

log = logging.getLogger(__name__)

_MAX_DOUBLINGS = 30

_failures: Counter[str] = Counter()


class Outage:
    """An outage starts with a failure and ends with a success.

    Pauses double from `first_s` to `longest_s`. Each type of error is logged once per outage, at `level`, but not
    during the first `quiet` failures. A bug is logged at once, with its traceback. If an outage was logged, its end is
    logged, too. `name`: a fixed name, which labels metrics; `of`: what the work is about, for log lines.
    """

    def __init__(
        self,
        name: str,
        of: str = "",
        *,
        first_s: float = 0.1,
        longest_s: float = 5.0,
        quiet: int = 0,
        level: int = logging.WARNING,
    ) -> None:
        self.name, self._title = name, f"{name} of {of}" if of else name
        self._first_s, self._longest_s, self._quiet, self._level = first_s, longest_s, quiet, level
        self._logged: set[type[BaseException]] = set()
        self.failures = 0
        self.since: float | None = None
        """When the outage started, by `monotonic` (s); None if there is no outage."""
        self.trouble: str | None = None
        """The text of the last failure; None if there is no outage."""

    def record_failure(self, error: BaseException, *, bug: bool = False) -> float:
        """Record a failure; return how many seconds to wait before the retry."""
        _failures[self.name] += 1
        pause_s = min(self._first_s * 2.0 ** min(self.failures, _MAX_DOUBLINGS), self._longest_s)
        self.failures += 1
        self.since = self.since or monotonic()
        self.trouble = str(error) if isinstance(error, DuemqError) else f"{type(error).__name__}: {error}"
        if type(error) not in self._logged and (bug or self.failures > self._quiet):
            self._logged.add(type(error))
            log.log(
                logging.ERROR if bug else self._level, "%s fails, and tries again: %s", self._title, self.trouble,
                exc_info=error if bug else None, extra={"action": "outage", "what": self.name},
            )  # fmt: skip
        return pause_s

    def record_success(self) -> None:
        if self.since is None:
            return
        if self._logged:
            log.log(
                min(self._level, logging.INFO), "%s works again after %d failures in %.1f s", self._title,
                self.failures, monotonic() - self.since, extra={"action": "outage", "what": self.name},
            )  # fmt: skip
        self.failures, self.since, self.trouble = 0, None, None
        self._logged.clear()


def failure_counts() -> Counter[str]:
    """The number of failures since the process started, by the outage's name."""
    return _failures.copy()
