"""Runs jobs that seal, load or rewrite windows in a child process, for use in an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson

from duemq.storage.jobs.jobs import TieringJob
from duemq.storage.jobs.parent import lines_of

Work = Callable[[TieringJob], Awaitable[list[Any]]]
"""Does a job and returns its answers, as values that JSON can express."""

_SILENCE_S = 300.0  # longest silence: while an imported file is hashed, at 100 MB/s or more, no line is written
_lines = lines_of("duemq.storage.tiering.tiering_process", _SILENCE_S)


async def in_process(job: TieringJob) -> list[Any]:
    """Do a job in another process. Raises the errors of `lines_of`; Unresponsive means that the disk hangs."""
    async with aclosing(_lines(replace(job, tells=True))) as lines:
        answers = [orjson.loads(line) async for line in lines]
    return [answer for answer in answers if not _is_reading(answer)]


def _is_reading(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.keys() == {"done"}
