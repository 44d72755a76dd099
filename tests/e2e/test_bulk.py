"""Bulk schedule against a real server: every row once, whenever the driver is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duemq.client import Client
from duemq.model.timing import WINDOW_MS
from tests.e2e.server import Server, environment, run
from tests.support.spark.spark_site import spark_tests

pytestmark = [*spark_tests, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
PATHS = f"{ROOT}/src{os.pathsep}{ROOT}"  # this tree's code, wherever another one is installed
ROWS, BAD = 3_000, 7
RUN_S = 900.0
STEPS = (
    "writing", "written", "rejects", "before_manifest", "manifest", "before_hand_over", "accepted", "handed_over",
    "waiting", "done",
)  # fmt: skip
HANDING_OVER = ("before_hand_over", "accepted", "handed_over", "done")
"""What comes before is the same on every log."""


def table_of(path: Path, rows: int = ROWS) -> Path:
    """Rows over four windows, some of them due too soon; two files, so that two tasks read them."""
    now = int(time.time() * 1000)
    first = (now // WINDOW_MS + 3) * WINDOW_MS
    made = [
        {"due": now if n < BAD else first + n * 7_919 % (4 * WINDOW_MS), "topic": "orders", "key": f"k{n % 5}",
         "text": f"row {n}", "name": f"n-{n}"}
        for n in range(rows)
    ]  # fmt: skip
    path.mkdir(parents=True)
    for number in range(2):
        pq.write_table(pa.Table.from_pylist(made[number::2]), path / f"{number}.parquet")
    return path


def one_run(table: Path, stage: Path, url: str, job: str, step: str = "") -> subprocess.CompletedProcess[str]:
    """To its end. Its Java ends by itself when it is killed, and is killed for sure."""
    out, err = stage.with_name("out"), stage.with_name("err")
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.spark.bulk_run", *map(str, (table, stage, url, job, step))], cwd=ROOT,
            stdout=stdout, stderr=stderr, start_new_session=True, env=environment() | {"PYTHONPATH": PATHS},
        )  # fmt: skip
        try:
            code = process.wait(RUN_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return subprocess.CompletedProcess([], code, out.read_text(), err.read_text())


def pending(client: Client) -> list[tuple[str, str]]:
    """Name and id of all messages that wait."""
    return sorted((orjson.loads(client.get(one.id).state.payload or b"")["name"], one.id) for one in client.list())


def scheduled(stage: Path, job: str) -> list[tuple[str, str]]:
    table = pq.read_table(stage / f"ids-{job}")
    return sorted(zip(table["name"].to_pylist(), table["id"].to_pylist(), strict=True))


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    stage = tmp_path / "a stage"  # with a space, as folders may have
    stage.mkdir()
    return stage


@pytest.mark.parametrize("log", ["embedded", "kafka"])
def test_every_row_is_scheduled_once_although_the_driver_is_killed_at_every_step(
    new_server: Callable[..., Server], stage: Path, tmp_path: Path, log: str, request: pytest.FixtureRequest
) -> None:
    """One job, and each of its runs is killed at the next step; what they leave behind is there for all that follow."""
    on = ("--kafka", request.getfixturevalue("own_kafka").bootstrap) if log == "kafka" else ()
    server = new_server("--set", f"delay_files.import_from={stage}", *on).start()
    table = table_of(tmp_path / "table")
    for step in STEPS if log == "embedded" else HANDING_OVER:
        killed = one_run(table, stage, server.url, "j", step)
        assert killed.returncode == -9, (step, killed.stdout, killed.stderr)
    done = one_run(table, stage, server.url, "j")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(ROWS - BAD), str(BAD), "True"]
    assert len([path for path in (stage / "j").iterdir() if path.is_dir()]) == 1
    with Client(server.url) as client:
        found = pending(client)
    assert found == scheduled(stage, "j")
    assert sorted(name for name, _ in found) == sorted(f"n-{n}" for n in range(BAD, ROWS))


def test_a_task_that_fails_is_repeated_and_its_rows_are_counted_once(
    new_server: Callable[..., Server], stage: Path, tmp_path: Path
) -> None:
    server = new_server("--set", f"delay_files.import_from={stage}").start()
    done = one_run(table_of(tmp_path / "table"), stage, server.url, "j", "failing")
    assert done.returncode == 0, done.stderr
    assert (stage / "failed").exists() and "the source fails the first time" in done.stderr
    assert done.stdout.split() == [str(ROWS - BAD), str(BAD), "False"]
    with Client(server.url) as client:
        assert pending(client) == scheduled(stage, "j")
    assert len(scheduled(stage, "j")) == ROWS - BAD


def test_the_command_schedules_a_table_and_its_ids_cancel(
    new_server: Callable[..., Server], stage: Path, tmp_path: Path
) -> None:
    server = new_server("--set", f"delay_files.import_from={stage}").start()
    table, ids = table_of(tmp_path / "table"), tmp_path / "ids"
    mapped = ("--due", "due", "--topic", "topic", "--payload", "text", "--key", "key", "--name", "name")
    command = ("spark", "schedule", table, *mapped, "--stage", stage, "--rejects", tmp_path / "rejects")
    strict = run(*command, "--strict", url=server.url, within_s=RUN_S)
    assert strict.returncode == 7 and "nothing is scheduled" in strict.stderr, strict.stderr
    done = run(*command, "--ids", ids, "--json", url=server.url, within_s=RUN_S)
    assert done.returncode == 0, done.stderr
    said = orjson.loads(done.stdout)
    assert (said["scheduled"], said["rejected"], said["again"]) == (ROWS - BAD, BAD, False)
    reasons = pq.read_table(said["rejects"])["reason"].to_pylist()
    assert len(reasons) == BAD and all("begins sooner than 600000 ms" in reason for reason in reasons)
    with Client(server.url) as client:
        found = {row["name"]: row for row in pq.read_table(ids).to_pylist()}
        assert len(found) == ROWS - BAD
        state = client.get(found["n-77"]["id"]).state
        assert (state.payload, state.key, state.deliver_at_ms) == (b"row 77", "k2", found["n-77"]["due_ms"])
        report = client.cancel_many([found[f"n-{n}"]["id"] for n in range(100, 200)])
        assert report.counts["cancelled"] == 100
        assert sum(1 for _ in client.list()) == ROWS - BAD - 100

        again = run(*command, url=server.url, within_s=RUN_S)
        assert again.returncode == 0, again.stderr
        assert (
            f"{ROWS - BAD:,} of {ROWS:,} rows are scheduled" in again.stdout and "nothing was changed" in again.stdout
        )
        assert sum(1 for _ in client.list()) == ROWS - BAD - 100
