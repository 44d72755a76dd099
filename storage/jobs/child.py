"""A process that works for another one, and ends with it.

The job is one line of JSON on standard input. That stays open as long as the parent lives: however it ends, its end
closes the pipe. A child that outlived a killed server would write files under names that the next one uses.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import orjson

from duemq.storage.jobs.jobs import Reading

NICE = 10
_TELL_S = 1.0
ORPHANED = 9  # the exit code of a child whose parent has ended


class Progress:
    """Tells about once a second how many rows are done, so that the parent sees that something goes on."""

    def __init__(self, tell: Callable[[Reading], None]) -> None:
        self._tell, self._last_report_s, self._rows = tell, time.monotonic(), 0

    def rows(self, rows: int) -> None:
        """Set how many rows are done."""
        self._rows = rows
        self.alive()

    def more(self, rows: int) -> None:
        """Add rows to those that are done."""
        self.rows(self._rows + rows)

    def alive(self) -> None:
        if (now := time.monotonic()) - self._last_report_s >= _TELL_S:
            self._last_report_s = now
            self._tell(Reading(self._rows))


def job_of_parent() -> Any:
    """The job of this process, as JSON: see `jobs.py`. From now on it has low priority, and ends with its parent."""
    os.nice(NICE)
    line = sys.stdin.buffer.readline()
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    return orjson.loads(line)


def _end_with_parent() -> None:
    # Not by sys.stdin: its lock would be held when the interpreter ends.
    while os.read(0, 1):
        pass
    os._exit(ORPHANED)
