"""A child process that ends with its parent.

The job is one line of JSON on standard input. The parent keeps that pipe open as long as it lives; however the parent
ends, the pipe closes. A child that outlived a killed server would write files under names that the next server uses.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import orjson

from duemq.storage.jobs.jobs import ReadProgress

NICE = 10
_TELL_S = 1.0
ORPHANED = 9  # the exit code of a child whose parent has ended


class RowProgress:
    """Reports the number of rows done, about once a second, so that the parent sees progress."""

    def __init__(self, tell: Callable[[ReadProgress], None]) -> None:
        self._tell, self._last_report_s, self._rows = tell, time.monotonic(), 0

    def rows(self, rows: int) -> None:
        """Set the number of rows done."""
        self._rows = rows
        self.alive()

    def more(self, rows: int) -> None:
        """Add to the number of rows done."""
        self.rows(self._rows + rows)

    def alive(self) -> None:
        if (now := time.monotonic()) - self._last_report_s >= _TELL_S:
            self._last_report_s = now
            self._tell(ReadProgress(self._rows))


def job_of_parent() -> Any:
    """This process's job, as JSON: see `jobs.py`. From this call on the process has low priority and ends with its
    parent."""
    os.nice(NICE)
    line = sys.stdin.buffer.readline()
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    return orjson.loads(line)


def _end_with_parent() -> None:
    # Not through sys.stdin: this thread would have its lock when the interpreter ends.
    while os.read(0, 1):
        pass
    os._exit(ORPHANED)
