"""The process that does the work of sealing and loading, as the event loop sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson

from duemq.storage.jobs.jobs import TieringJob
from duemq.storage.jobs.parent import lines_of

Work = Callable[[TieringJob], Awaitable[list[Any]]]
"""Does a job; its answers, as JSON-able values."""

_SILENCE_S = 300.0  # longest silence: an imported file is hashed without a line in between, at 100 MB/s and more
_lines = lines_of("duemq.storage.tiering.tiering_process", _SILENCE_S)


async def in_process(job: TieringJob) -> list[Any]:
    """Do a job in another process. Raises as `lines_of` says, and Unresponsive if its disk hangs."""
    async with aclosing(_lines(replace(job, tells=True))) as lines:
        answers = [orjson.loads(line) async for line in lines]
    return [answer for answer in answers if not _is_reading(answer)]


def _is_reading(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.keys() == {"done"}
