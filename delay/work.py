"""The work that takes a core for seconds, done by another process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import orjson

from duemq.model.errors import CorruptStore, DamagedFile, DuemqError, StoreFailed
from duemq.storage.far_process import CORRUPT, DAMAGED

_LINE_BYTES = 1 << 20
_ERRORS: dict[int | None, type[DuemqError]] = {CORRUPT: CorruptStore, DAMAGED: DamagedFile}

Job = Mapping[str, Any]
Lines = Callable[[Job], AsyncGenerator[bytes, None]]
"""Does a job, given as JSON-able values, and gives one line of JSON for each part that is done. To be closed."""


def lines_of(module: str) -> Lines:
    """Work done by a Python module that reads its job from standard input and writes lines to standard output.

    Raises DamagedFile, CorruptStore or StoreFailed with what the process said in the end.
    """

    async def work(job: Job) -> AsyncGenerator[bytes, None]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, limit=_LINE_BYTES,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        wrong = asyncio.create_task(process.stderr.read())
        try:
            process.stdin.write(orjson.dumps(job) + b"\n")  # and it stays open: the child ends where it is closed
            async for line in process.stdout:
                yield line
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            text = (await wrong).decode(errors="replace").strip()
        if process.returncode != 0:
            text = text or f"{module} ended with exit code {process.returncode}"
            raise _ERRORS.get(process.returncode, StoreFailed)(text)

    return work
