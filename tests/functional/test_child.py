"""The processes that work for a node end with it, however it ends."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import pytest

from duemq.delay.work import lines_of
from duemq.model.errors import StoreFailed
from duemq.storage.child import ORPHANED
from duemq.storage.intake_rules import AdoptLimits

INTAKE = "duemq.storage.intake_process"


def endless(folder: Path) -> dict[str, Any]:
    """A job that never ends: its source is a pipe that nobody writes to."""
    os.mkfifo(folder / "source")
    return {"inspect": str(folder / "source"), "limits": asdict(AdoptLimits())}


def test_a_child_ends_when_its_pipe_is_closed(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-m", INTAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    with child, child.stdout:
        child.stdin.write(orjson.dumps(endless(tmp_path)) + b"\n")
        child.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(2)
        child.stdin.close()
        assert child.wait(20) == ORPHANED


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    job = orjson.dumps(endless(tmp_path)).decode()
    parent = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-m', {INTAKE!r}], stdin=subprocess.PIPE)\n"
        f"child.stdin.write({job!r}.encode() + b'\\n'); child.stdin.flush()\n"
        "print(child.pid, flush=True); time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        child = int(process.stdout.readline())
        ended = os.pidfd_open(child)
        process.send_signal(signal.SIGKILL)
        assert select.select([ended], [], [], 20)[0], "the child goes on"
        os.close(ended)


def test_a_job_of_many_files_is_said_in_one_line(tmp_path: Path) -> None:
    async def answers() -> list[bytes]:
        files = [
            {"source": "/none", "target": str(tmp_path / f"{n}.parquet"), "shard": 0, "offset": n, "window": 0,
             "rows": 1, "size": 1, "sha256": "0" * 64, "link": False, "refused": "x" * 4_000}
            for n in range(100)
        ]  # fmt: skip
        async with aclosing(lines_of(INTAKE)({"files": files, "limits": asdict(AdoptLimits())})) as lines:
            return [line async for line in lines]

    said = [orjson.loads(line) for line in asyncio.run(answers())]
    assert said == [{"reason": "x" * 4_000, "final": True}] * 100


def test_a_child_that_fails_says_why() -> None:
    async def work() -> None:
        async with aclosing(lines_of("duemq.storage.far_process")({"work": "nothing"})) as lines:
            async for _ in lines:
                pass

    with pytest.raises(StoreFailed, match="nothing is no work"):
        asyncio.run(work())
