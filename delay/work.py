"""The work that takes a core for seconds, done by another process (storage/far_process.py)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import orjson

from duemq.model.errors import CorruptStore, StoreFailed
from duemq.storage.far_process import CORRUPT

_PROGRAM = (sys.executable, "-m", "duemq.storage.far_process")
_LINE_BYTES = 1 << 20

Work = Callable[[str, Mapping[str, Any]], AsyncIterator[bytes]]
"""Does work of a kind, by its job as JSON-able values, and gives one line of JSON for each part that is done."""


async def in_process(what: str, job: Mapping[str, Any]) -> AsyncIterator[bytes]:
    """See `Work`. Raises CorruptStore or StoreFailed with what the process said in the end."""
    process = await asyncio.create_subprocess_exec(
        *_PROGRAM, what, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    wrong = asyncio.create_task(process.stderr.read())
    try:
        process.stdin.write(orjson.dumps(job))
        process.stdin.close()
        async for line in process.stdout:
            yield line
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        text = (await wrong).decode(errors="replace").strip()
    if process.returncode != 0:
        text = text or f"{what} ended with exit code {process.returncode}"
        raise CorruptStore(text) if process.returncode == CORRUPT else StoreFailed(text)
