"""Whether a job is written before the first of its windows come too near, told while it is being written."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from duemq.pipeline.spark.progress import Teller

_LEAST_TASKS: Final = 3  # that say how long the others take


class WriteDeadline:
    """A Teller that passes on what it is told, and once says so where the tasks done so far show that writing takes
    longer than `lead_ms` from `began` (epoch ms) leaves. `clock`: epoch ms.

    Spark tells of the tasks of a later stage when that begins, so a job takes longer than is known here, never less.
    """

    def __init__(self, teller: Teller, began: int, lead_ms: int, clock: Callable[[], int] | None = None) -> None:
        self._teller, self._began, self._lead_ms = teller, began, lead_ms
        self._clock = clock or (lambda: int(time.time() * 1000))
        self._has_warned = False

    def step(self, what: str) -> None:
        self._teller.step(what)

    def share(self, done: int, total: int) -> None:
        self._teller.share(done, total)
        if self._has_warned or done < _LEAST_TASKS:
            return
        took = self._clock() - self._began
        ends = self._began + took * total // done
        if ends > self._began + self._lead_ms:
            self._has_warned = True
            self._teller.says(
                f"{done:,} of {total:,} tasks took {took / 1000:,.0f} s: writing ends at {_time(ends)} or later, and "
                f"the lead at {_time(self._began + self._lead_ms)}. What is due in a window that has come too near by "
                "then is rejected; a longer lead would reject it at once"
            )

    def says(self, sentence: str) -> None:
        self._teller.says(sentence)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S UTC")
