"""Runs work in a child process, if the work would take a whole core for seconds."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

import orjson

from duemq.model.errors import CorruptStore, DamagedFile, DuemqError, StoreFailed
from duemq.storage.jobs.jobs import CORRUPT, DAMAGED, Damage, decode, encode

log = logging.getLogger(__name__)

_LINE_BYTES = 1 << 20
_TEXT_BYTES = 64 << 10  # how much of a process's last output is used
_KILLED_S = 5.0

Lines = Callable[[Any], AsyncGenerator[bytes, None]]
"""Does a job from `jobs.py`, and yields one line of JSON per answer. Must be closed."""


class Unresponsive(StoreFailed):
    """A process was silent for too long, so its disk or mount probably hangs."""


def lines_of(module: str, silence_s: float | None = None) -> Lines:
    """Work done by a Python module that reads its job from standard input and writes lines to standard output.

    Raises DamagedFile, CorruptStore or StoreFailed with the process's last output; StoreFailed also if the process
    could not be started; Unresponsive if it wrote no line for `silence_s` seconds.
    """

    async def work(job: object) -> AsyncGenerator[bytes, None]:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", module,  # -P: no imports from the working folder
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                limit=_LINE_BYTES,
            )  # fmt: skip
        except OSError as error:  # out of memory, processes or descriptors
            raise StoreFailed(f"{module} could not be started: {error}") from error
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        wrong = asyncio.create_task(_end_of(process.stderr), name=f"errors of {module}")
        try:
            process.stdin.write(encode(job) + b"\n")  # kept open, because the child ends when its input closes
            while line := await _line(process.stdout, module, silence_s):
                yield line
            await process.wait()
        finally:
            if process.returncode is None:
                await _kill(process, module)
            if process.returncode is None:
                wrong.cancel()
            await asyncio.wait([wrong])
        if process.returncode != 0:
            text = wrong.result().decode(errors="replace").strip()
            text = text or f"{module} ended with exit code {process.returncode}"
            raise _error_of(process.returncode, text)

    return work


def _error_of(exit_code: int | None, text: str) -> DuemqError:
    """The error for a failed process, from its last lines on standard error."""
    if exit_code == DAMAGED:
        damage = decode(Damage, orjson.loads(text.splitlines()[-1]))
        return DamagedFile(damage.message, damage.path)
    return CorruptStore(text) if exit_code == CORRUPT else StoreFailed(text)


async def _line(output: asyncio.StreamReader, module: str, silence_s: float | None) -> bytes:
    try:
        return await asyncio.wait_for(output.readline(), silence_s)
    except TimeoutError as error:
        raise Unresponsive(f"nothing could be read for {silence_s:g} s") from error
    except (ValueError, OSError) as error:
        raise StoreFailed(f"{module} cannot be understood: {error}") from error


async def _end_of(output: asyncio.StreamReader) -> bytes:
    """The last bytes of the output, once it has ended."""
    last = b""
    while part := await output.read(_TEXT_BYTES):
        last = (last + part)[-_TEXT_BYTES:]
    return last


async def _kill(process: asyncio.subprocess.Process, module: str) -> None:
    """Kill a process. Gives up after a while, because a process that waits for a hanging mount cannot be killed."""
    with suppress(ProcessLookupError):
        process.kill()
    try:
        await asyncio.wait_for(process.wait(), _KILLED_S)
    except TimeoutError:
        log.error("process %d of %s cannot be killed", process.pid, module, extra={"action": "kill"})
