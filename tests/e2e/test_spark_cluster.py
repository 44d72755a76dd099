"""The built wheel on a standalone Spark of a master and two workers, by spark-submit (docs/pipeline.md)."""

from __future__ import annotations

import json
import os
import signal
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import duemq
from duemq.client import Client
from duemq.storage.rows import WINDOW_MS
from tests.e2e.server import Server, wait_for
from tests.e2e.test_packaging import ROOT, checkout, python
from tests.real_servers import need_servers
from tests.spark_cluster import SparkCluster, environment_of, packed, submit

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel."""
    folder = tmp_path_factory.mktemp("spark-wheel")
    python(ROOT, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, checkout(folder))
    (wheel,) = folder.glob("duemq-*.whl")
    return environment_of(wheel, folder / "made", Path(sysconfig.get_path("purelib")))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    need_servers()
    with SparkCluster(tmp_path_factory.mktemp("spark-cluster"), workers=2) as cluster:
        yield cluster


def test_both_workers_have_the_wheel(cluster: SparkCluster, made: Path) -> None:
    done = submit(cluster.url, made, packed(made), "check", "--no-kafka", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["master"] == cluster.url
    assert [worker["duemq"] for worker in said["workers"]] == [duemq.__version__] * 2


def test_executors_without_duemq_are_told(cluster: SparkCluster, made: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    python(tmp_path, "-m", "venv", "--without-pip", bare)
    done = submit(cluster.url, made, packed(bare), "check", "--no-kafka")
    assert done.returncode == 1
    said = done.stdout  # where spark-submit puts stderr, too
    assert "duemq: the executors cannot run duemq: ModuleNotFoundError: No module named" in said


ROWS = 400_000
MAPPED = ("--due", "due", "--to", "orders", "--payload", "text", "--key", "key", "--name", "name")


def table_of(path: Path) -> Path:
    """Rows over four windows, in four files."""
    first = (int(time.time() * 1000) // WINDOW_MS + 3) * WINDOW_MS
    path.mkdir()
    for part in range(4):
        numbers = range(part, ROWS, 4)
        columns: dict[str, Any] = {
            "due": [first + n * 7_919 % (4 * WINDOW_MS) for n in numbers], "text": [f"row {n}" for n in numbers],
            "key": [f"k{n % 5}" for n in numbers], "name": [f"n-{n}" for n in numbers],
        }  # fmt: skip
        pq.write_table(pa.table(columns), path / f"{part}.parquet")
    return path


def kill_one_while_it_writes(cluster: SparkCluster, written: Callable[[], bool], killed: list[int]) -> None:
    """An executor, once there is a file that is not finished: what it had sorted for others is lost with it."""
    wait_for(written, "a file that is written", 200)
    killed.append(cluster.executors()[0])
    os.kill(killed[0], signal.SIGKILL)


def test_a_table_is_scheduled_once_although_an_executor_is_lost_while_files_are_written(
    cluster: SparkCluster, made: Path, new_server: Callable[..., Server], tmp_path: Path
) -> None:
    stage, ids, killed = tmp_path / "stage", tmp_path / "ids", list[int]()
    stage.mkdir()
    server = new_server("--set", f"far.adopt_from={stage}").start()

    def written() -> bool:
        return any(stage.glob("*/attempt-*/_temporary/**/*.parquet"))

    killer = threading.Thread(target=kill_one_while_it_writes, args=(cluster, written, killed))
    killer.start()
    words = ("schedule", table_of(tmp_path / "table"), *MAPPED, "--stage", stage, "--url", server.url)
    done = submit(cluster.url, made, packed(made), *words, "--ids", ids, "--json", attempts=4)
    killer.join()
    check_all(done, killed, pq.read_table(ids), server)


def check_all(done: CompletedProcess[str], killed: list[int], found: pa.Table, server: Server) -> None:
    """Each row was scheduled once, although an executor was lost."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert killed and "ExecutorLostFailure" in done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert (said["rows"], said["scheduled"], said["rejected"]) == (ROWS, ROWS, 0)
    assert len(set(found["id"].to_pylist())) == ROWS
    assert sorted(found["name"].to_pylist()) == sorted(f"n-{n}" for n in range(ROWS))
    with Client(server.url) as client:
        assert sum(shard.pending or 0 for shard in client.cluster().shards) == ROWS
        for row in found.slice(0, 50).to_pylist():
            state = client.get(row["id"]).state
            assert (state.payload, state.deliver_at_ms) == (f"row {row['name'][2:]}".encode(), row["due_ms"])
