"""The process that does the work of sealing and loading, as the event loop sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import orjson

from duemq.storage.jobs.jobs import TieringJob
from duemq.storage.jobs.parent import lines_of

Work = Callable[[TieringJob], Awaitable[list[Any]]]
"""Does a job; its answers, as JSON-able values."""

_lines = lines_of("duemq.storage.delay_files.tiering_process")


async def in_process(job: TieringJob) -> list[Any]:
    """Do a job in a process of its own. Raises as `lines_of` says."""
    async with aclosing(_lines(job)) as lines:
        return [orjson.loads(line) async for line in lines]
