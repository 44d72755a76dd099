"""A process that works for another one, and ends with it.

The job is one line of JSON on standard input. That stays open as long as the parent lives: however it ends, its end
closes the pipe. A child that outlived a killed server would write files under names that the next one uses.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import orjson

NICE = 10
ORPHANED = 9  # the exit code of a child whose parent has ended


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
