"""The processes that work for a node end with it, however it ends."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson
import pytest

from duemq.model.errors import StoreFailed
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import make_key
from duemq.model.messages.message import Draft, schedule_frame
from duemq.model.messages.row import row_of
from duemq.model.timing import WINDOW_MS
from duemq.storage.delay_files.about import About
from duemq.storage.delay_files.sealed_file import parts_of, write
from duemq.storage.jobs import child
from duemq.storage.jobs.child import ORPHANED
from duemq.storage.jobs.jobs import (
    ImportFailure,
    ImportFile,
    ImportJob,
    JobFile,
    LoadJob,
    ReadProgress,
    RewriteJob,
    import_answer,
)
from duemq.storage.jobs.jobs import tiering_job as tiering_job_of
from duemq.storage.jobs.parent import Unresponsive, lines_of
from duemq.storage.limits import ImportLimits
from duemq.storage.tiering import tiering_job
from duemq.storage.tiering.tiering_process import perform
from tests.support.patience import PROCESS_S

INTAKE = "duemq.storage.imports.import_process"


def endless(folder: Path) -> dict[str, Any]:
    """A job that takes hours: its source has a terabyte, most of it a hole."""
    with (folder / "source").open("wb") as source:
        source.truncate(1 << 40)
    return {"inspect": str(folder / "source"), "limits": asdict(ImportLimits()), "folders": [str(folder)]}


def test_a_child_ends_when_its_pipe_is_closed(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-m", INTAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    with child, child.stdout:
        child.stdin.write(orjson.dumps(endless(tmp_path)) + b"\n")
        child.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(2)
        child.stdin.close()
        assert child.wait(PROCESS_S) == ORPHANED


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


def test_nothing_is_imported_from_where_the_server_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("orjson", "queue", "duemq"):
        (tmp_path / f"{name}.py").write_text("import sys\nsys.exit('a stranger ran')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with pytest.raises(StoreFailed, match="nothing is no work"):
        asyncio.run(lines_said_by("duemq.storage.tiering.tiering_process", job={"work": "nothing"}))


def test_a_job_of_many_files_is_said_in_one_line(tmp_path: Path) -> None:
    async def answers() -> list[bytes]:
        files = [
            ImportFile(f"/{'x/' * 2_000}none", str(tmp_path / f"{n}.parquet"), 0, n, 0, 1, 1, "0" * 64, link=False)
            for n in range(100)
        ]
        job = ImportJob(limits=ImportLimits(), files=files)
        async with aclosing(lines_of(INTAKE)(job)) as lines:
            return [line async for line in lines]

    said = [import_answer(line) for line in asyncio.run(answers())]
    assert said == [ImportFailure("none cannot be read: No such file or directory")] * 100


async def lines_said_by(
    module: str, silence_s: float | None = None, job: Mapping[str, Any] = MappingProxyType({})
) -> list[bytes]:
    async with aclosing(lines_of(module, silence_s)(dict(job))) as lines:
        return [line async for line in lines]


@pytest.mark.parametrize("code", ["print('x' * 1_200_000)", "print('said'); print('x' * 1_200_000)"])
def test_a_line_without_end_is_a_failure_of_the_process(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "talks.py").write_text(f"import sys\nsys.stdin.readline()\n{code}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(StoreFailed, match="cannot be understood"):
        asyncio.run(lines_said_by("talks"))


def test_a_process_that_cannot_be_started_is_a_failure_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_process(*arguments: object, **options: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", no_process)
    with pytest.raises(StoreFailed, match="could not be started"):
        asyncio.run(lines_said_by("none"))


def test_a_process_that_says_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "silent.py").write_text("import time\nprint('{}', flush=True)\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(Unresponsive, match="nothing could be read"):
        asyncio.run(lines_said_by("silent", 5.0))


def test_what_a_process_says_in_the_end_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "moans.py").write_text("import sys\nsys.exit('x' * 10_000_000 + 'why')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(StoreFailed, match=r"why$") as raised:
        asyncio.run(lines_said_by("moans"))
    assert len(str(raised.value)) <= 1 << 16


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(StoreFailed, match="nothing is no work"):
        asyncio.run(lines_said_by("duemq.storage.tiering.tiering_process", job={"work": "nothing"}))


def a_file(path: Path, rows: int) -> About:
    """A sealed file with this many messages."""
    ids = IdCodec(b"s" * 32)

    def row(number: int) -> tuple[bytes, bytes]:
        frame = schedule_frame(Draft("orders", b"%d" % number, WINDOW_MS), 0)
        return make_key(WINDOW_MS, number, 0), row_of(frame, ids.issue_bytes(0, WINDOW_MS, number))

    return write(path, 0, WINDOW_MS, parts_of(map(row, range(rows))))


def test_a_tiering_process_whose_disk_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file can be opened, and never be read: as on a mount whose server is gone."""
    about = a_file(tmp_path / "000001.parquet", 3)
    (tmp_path / "none").touch()
    os.mkfifo(tmp_path / "hangs.parquet")
    monkeypatch.setattr(tiering_job, "_lines", lines_of("duemq.storage.tiering.tiering_process", 3.0))
    loads = [
        LoadJob([JobFile(str(tmp_path / name), about)], "00" * 32, str(tmp_path / "none"), str(tmp_path / "sst"))
        for name in ("000001.parquet", "hangs.parquet")
    ]
    assert asyncio.run(tiering_job.in_process(loads[0])) == [3]
    with pytest.raises(Unresponsive, match="nothing could be read for 3 s"):
        asyncio.run(tiering_job.in_process(loads[1]))


def test_a_tiering_process_tells_that_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[ReadProgress] = []
    monkeypatch.setattr(child, "_TELL_S", 0.0)
    about = a_file(tmp_path / "000001.parquet", 10_000)
    (tmp_path / "none").touch()
    files = [JobFile(str(tmp_path / "000001.parquet"), about)]
    load = LoadJob(files, "00" * 32, str(tmp_path / "none"), str(tmp_path / "sst"))
    assert list(perform(load, child.RowProgress(told.append).more)) == [10_000]
    rewrite = RewriteJob(0, "00" * 32, str(tmp_path / "none"), [(WINDOW_MS, str(tmp_path / "000002.parquet"), files)])
    (again,) = perform(rewrite, child.RowProgress(told.append).more)
    assert again == about and len(told) > 4 and max(one.done for one in told) >= 10_000
    # A server of an older version, which starts this process, knows no such lines, and does not ask for them.
    assert not tiering_job_of({"work": "seal", "checkpoint": "", "shard": 0, "windows": []}).tells
