"""The process that does the work of sealing and loading, as the event loop sees it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from duemq.model.errors import CorruptStore, DamagedFile, DuemqError, StoreFailed
from duemq.storage.far_process import CORRUPT, DAMAGED, Job

Work = Callable[[Job], Awaitable[list[Any]]]
"""Does a job; its results."""

_PROGRAM = (sys.executable, "-m", "duemq.storage.far_process")
_ERRORS: dict[int | None, type[DuemqError]] = {CORRUPT: CorruptStore, DAMAGED: DamagedFile}


async def in_process(job: Job) -> list[Any]:
    """Do a job in a process of its own. Raises DamagedFile, CorruptStore or StoreFailed with what it says is wrong."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*_PROGRAM, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        said, wrong = await process.communicate(orjson.dumps(job))
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode == 0:
        return [orjson.loads(line) for line in said.splitlines()]
    text = wrong.decode(errors="replace").strip() or f"{job['work']} ended with exit code {process.returncode}"
    raise _ERRORS.get(process.returncode, StoreFailed)(text)
