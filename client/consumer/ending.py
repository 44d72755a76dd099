"""Steps that must not prevent a program from ending."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

log = logging.getLogger(__name__)


async def within(limit_s: float, *steps: Awaitable[None]) -> None:
    """Run these steps concurrently. After `limit_s` seconds, unfinished ones are cancelled and not awaited."""
    tasks = [asyncio.create_task(_run(each), name="consumer end") for each in steps]
    done, late = await asyncio.wait(tasks, timeout=max(limit_s, 0))
    for each in late:
        each.cancel()
    for each in done:
        if not each.cancelled() and (error := each.exception()) is not None:
            log.warning("consumer cannot end cleanly: %r", error, exc_info=error, extra={"action": "end"})


async def _run(step: Awaitable[None]) -> None:
    await step
