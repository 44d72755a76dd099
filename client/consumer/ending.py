"""Steps that must not keep a program from ending."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

log = logging.getLogger(__name__)


async def within(limit_s: float, *steps: Awaitable[None]) -> None:
    """Take these steps, at once. What is not over after so many seconds goes on, but is not waited for any more."""
    tasks = [asyncio.ensure_future(each) for each in steps]
    for each in (await asyncio.wait(tasks, timeout=max(limit_s, 0)))[0]:
        if not each.cancelled() and (error := each.exception()) is not None:
            log.error("consumer cannot end as it should: %r", error, exc_info=error, extra={"action": "end"})
