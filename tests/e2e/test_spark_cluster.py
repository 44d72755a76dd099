"""The built wheel on a standalone Spark of a master and two workers, by spark-submit (docs/guides/pipeline.md)."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import duemq
from duemq.client import Admin
from duemq.model.timing import WINDOW_MS
from tests.e2e.server import Server
from tests.support.house.distributions import environment_of, run
from tests.support.servers.real_servers import need_servers
from tests.support.servers.s3_site import S3Site
from tests.support.spark.spark_cluster import SparkCluster, need_namespaces, packed, submit

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def made(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheels."""
    return environment_of([wheels["duemq"], wheels["duemq-spark"]], tmp_path_factory.mktemp("spark-wheel") / "made")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    need_servers()
    with SparkCluster(tmp_path_factory.mktemp("spark-cluster"), workers=2) as cluster:
        yield cluster


def test_both_workers_have_the_wheels(cluster: SparkCluster, made: Path) -> None:
    done = submit(cluster.url, made, packed(made), "check", "--no-kafka", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["master"] == cluster.url
    assert [worker["duemq"] for worker in said["workers"]] == [duemq.__version__] * 2


def test_executors_without_duemq_are_told(cluster: SparkCluster, made: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    run("-m", "venv", "--without-pip", bare)
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


def run_and_kill(
    cluster: SparkCluster, written: Callable[[], bool], run: Callable[[], CompletedProcess[str]]
) -> tuple[CompletedProcess[str], list[int]]:
    """A job of which an executor is killed once there is a file that is not finished: what that one had sorted for
    others is lost with it. Returns what the job said, and who was killed."""
    killed: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(run)
        while not job.done():
            if not killed and written():
                killed.append(cluster.executors()[0])
                os.kill(killed[0], signal.SIGKILL)
            time.sleep(0.02)
    return job.result(), killed


def test_a_table_is_scheduled_once_although_an_executor_is_lost_while_files_are_written(
    cluster: SparkCluster, made: Path, new_server: Callable[..., Server], tmp_path: Path
) -> None:
    stage, ids = tmp_path / "stage", tmp_path / "ids"
    stage.mkdir()
    server = new_server("--set", f"delay_files.import_from={stage}").start()

    def written() -> bool:
        return any(stage.glob("*/attempt-*/_temporary/**/*.parquet"))

    words = ("schedule", table_of(tmp_path / "table"), *MAPPED, "--stage", stage, "--url", server.url)
    done, killed = run_and_kill(
        cluster,
        written,
        lambda: submit(cluster.url, made, packed(made), *words, "--ids", ids, "--json", attempts=4),
    )
    check_all(done, killed, lambda: pq.read_table(ids), server)


def check_all(done: CompletedProcess[str], killed: list[int], ids: Callable[[], pa.Table], server: Server) -> None:
    """Each row was scheduled once, although an executor was lost."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert killed and "ExecutorLostFailure" in done.stdout + done.stderr
    said, found = json.loads(done.stdout), ids()
    assert (said["rows"], said["scheduled"], said["rejected"]) == (ROWS, ROWS, 0)
    assert len(set(found["id"].to_pylist())) == ROWS
    assert sorted(found["name"].to_pylist()) == sorted(f"n-{n}" for n in range(ROWS))
    with Admin(server.url) as client:
        assert sum(shard.pending or 0 for shard in client.cluster().shards) == ROWS
        for row in found.slice(0, 50).to_pylist():
            state = client.get(row["id"]).state
            assert (state.payload, state.deliver_at_ms) == (f"row {row['name'][2:]}".encode(), row["due_ms"])


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Two workers each of which has a file system of its own where tests write."""
    need_servers()
    need_namespaces()
    base = tmp_path_factory.getbasetemp()
    with SparkCluster(tmp_path_factory.mktemp("apart"), workers=2, hidden=base) as cluster:
        yield cluster


def test_a_table_is_scheduled_once_by_workers_that_share_no_disk(
    apart: SparkCluster, made: Path, s3: S3Site, new_server: Callable[..., Server], tmp_path: Path
) -> None:
    """Table, stage, ids and rejects are in a store, and the server takes the files in from there."""
    bucket = s3.bucket()
    for path in table_of(tmp_path / "table").iterdir():
        s3.put(f"{bucket}/table/{path.name}", path.read_bytes())
    server = new_server(
        "--set", f"delay_files.import_from=s3://{bucket}/jobs", "--set", f"delay_files.s3_endpoint={s3.endpoint}"
    )
    server.environment = s3.variables
    server.start()

    def written() -> bool:
        return any("_temporary" in key and key.endswith(".parquet") for key in s3.keys(f"{bucket}/jobs"))

    # Both have the address of this machine, and would read what the other one has sorted from its disk.
    settings = s3.of_spark | {"spark.shuffle.readHostLocalDisk": "false"}
    words = (
        "schedule",
        f"s3a://{bucket}/table",
        "--format",
        "parquet",
        *MAPPED,
        "--stage",
        f"s3a://{bucket}/jobs",
        "--url",
        server.url,
    )
    more = ("--ids", f"s3a://{bucket}/ids", "--rejects", f"s3a://{bucket}/rejects", "--json", "--job", "apart")
    done, killed = run_and_kill(
        apart,
        written,
        lambda: submit(apart.url, made, packed(made), *words, *more, attempts=4, settings=settings),
    )
    check_all(done, killed, lambda: pq.read_table(f"{bucket}/ids", filesystem=s3.files()), server)
    again = submit(apart.url, made, packed(made), *words, *more, settings=settings)
    assert again.returncode == 0 and json.loads(again.stdout)["again"], again.stdout + again.stderr
