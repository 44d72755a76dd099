"""Rows sent through a real Kafka to a real server: found by their names, and delivered once whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duemq.client import Client
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.timing import WINDOW_MS
from duemq.pipeline.bulk_schedule.manifest import JobFolder
from duemq.pipeline.bulk_schedule.rules import BulkRules
from duemq.pipeline.columns import Columns
from duemq.pipeline.errors import BadInput, JobFailed, RowsRejected
from duemq.pipeline.logs.ranges import Logs
from duemq.pipeline.send import commands_of, send, send_stream, shards_of
from duemq.pipeline.send.soon import send_soon
from duemq.pipeline.send.stream import METRICS
from duemq.pipeline.spark.connector import JARS_VARIABLE
from tests.e2e.server import DUEMQ, Server, environment, wait_for
from tests.support.patience import PROCESS_S
from tests.support.servers.real_servers import need_servers
from tests.support.spark.send_run import ROWS_PASSED
from tests.support.spark.spark_cluster import SparkCluster
from tests.support.spark.spark_process import SparkProcess
from tests.support.spark.spark_site import spark_jars, spark_tests

pytestmark = [*spark_tests, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
SHARDS, PARTS = 3, 4
ROWS = int(os.environ.get("SEND_ROWS", "20000"))  # of the test that kills; more take longer, and say no more
HOUR_MS = 3_600_000
COLUMNS = Columns("due", "text", to="orders", key="key", headers="more", labels="marks", expires="until", name="name")
SCHEMA = "due bigint, text string, key string, more map<string,string>, marks array<string>, until bigint, name string"


class Site:
    def __init__(self, bootstrap: str, server: Server) -> None:
        self.bootstrap, self.server = bootstrap, server

    def appended(self) -> int:
        """Records in the buffer, among them those of the server itself."""
        return Logs(self.bootstrap).ranges(["duemq.buffer"])["duemq.buffer"].count


@contextmanager
def opened(folder: Path) -> Iterator[Site]:
    need_servers()
    with (
        KafkaServers(folder / "kafka") as kafka,
        Server(folder / "data", "--kafka", kafka.bootstrap, "--shards", str(SHARDS)) as server,
    ):
        yield Site(kafka.bootstrap, server.start())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with opened(tmp_path_factory.mktemp("send")) as site:
        yield site


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def rows(spark: SparkSession, prefix: str, due: int, count: int = 60) -> DataFrame:
    made = [
        (due + n, f"text {n}", f"k{n % 3}", {"trace": str(n)}, ["a", "b"] if n % 2 else None, due + 10**9 + n,
         f"{prefix}:{n}")
        for n in range(count)
    ]  # fmt: skip
    return spark.createDataFrame(made, SCHEMA)


def arrived(server: Server, topic: str, count: int) -> Counter[str]:
    """The payloads in a topic: once there are so many, and those that come in the second after."""
    found: Counter[str] = Counter()
    cursor, deadline = None, time.monotonic() + 600
    with Client(server.url, timeout=300) as client:
        while True:
            page = client.records(topic, after=cursor, max=10_000, wait=timedelta(seconds=1))
            found.update(record.text for record in page.records)
            cursor = page.cursor
            if not page.records and sum(found.values()) >= count:
                return found
            assert time.monotonic() < deadline, f"{sum(found.values())} of {count} records came"


def test_what_is_sent_is_found_moved_and_cancelled_by_its_name(spark: SparkSession, site: Site) -> None:
    server, due = site.server, now_ms() + HOUR_MS
    assert shards_of(site.bootstrap) == SHARDS
    frame = rows(spark, "named", due)
    done = send(frame, COLUMNS, site.bootstrap)
    assert (done.rows, done.sent, done.rejected, done.rejects, done.shards) == (60, 60, 0, None, SHARDS)
    state = server.state("named:7")
    assert (state["payload"], state["key"], state["labels"]) == ("text 7", "k1", ["a", "b"])
    assert (state["headers"], state["deliver_at_ms"]) == ({"trace": "7"}, due + 7)
    assert (state["expires_at_ms"], state["status"]) == (due + 10**9 + 7, "scheduled")
    assert {server.state(f"named:{n}")["status"] for n in range(60)} == {"scheduled"}
    assert server.call("DELETE", "/v1/messages/named:8").json()["status"] == "cancelled"
    later = {"deliver_at": due + HOUR_MS}
    assert server.call("PATCH", "/v1/messages/named:9", later).json()["deliver_at_ms"] == due + HOUR_MS
    assert server.call("POST", "/v1/messages/named:10:deliver-now").status_code == 200
    again = send(frame, COLUMNS, site.bootstrap)  # from the start, as after a job that was lost
    assert again.sent == 60
    wait_for(lambda: server.state("named:10")["status"] == "delivered", "what was sent to be delivered now")
    assert server.state("named:8")["status"] == "cancelled"
    assert server.state("named:9")["deliver_at_ms"] == due + HOUR_MS
    with Client(server.url) as client:
        found = [one.state.headers["trace"] for one in client.list(topic="orders") if one.state.expires_at_ms]
    assert sorted(int(trace or 0) for trace in found) == sorted({*range(60)} - {8, 10})
    assert arrived(server, "orders", 1) == {"text 10": 1}


def test_rows_that_break_a_rule_are_not_sent(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    due, before = now_ms() + HOUR_MS, site.appended()
    bad = spark.createDataFrame(
        [(None, "x", None, None, None, None, "bad:1"), (due, "x", None, None, None, None, "bad\n2"),
         (due, "x", None, {"DELAY": "5"}, None, None, "bad:3"), (due, "x", None, None, [" a"], None, "bad:4"),
         (due, "x", None, None, None, None, "bad:5"), (due, "y", None, None, None, None, "bad:5")], SCHEMA,
    )  # fmt: skip
    frame = rows(spark, "good", due, 5).union(bad)
    with pytest.raises(RowsRejected, match="6 of 11 rows were rejected: nothing is sent"):
        send(frame, COLUMNS, site.bootstrap, strict=True)
    assert site.appended() == before
    done = send(frame, COLUMNS, site.bootstrap, rejects=f"file://{tmp_path}/rejects")
    assert (done.rows, done.sent, done.rejected) == (11, 5, 6)
    assert site.appended() == before + 5
    table = pq.read_table(str(done.rejects).removeprefix("file://"))
    assert table.schema.names == [*frame.columns, "reason"]
    assert sorted(reason.partition(":")[0] for reason in table["reason"].to_pylist()) == [
        "due_ms (column due)", "headers (column more)", "labels (column marks)", "name", "name", "name"
    ]  # fmt: skip
    nothing = send(bad.withColumn("due", F.lit(None).cast("bigint")), COLUMNS, site.bootstrap)
    assert (nothing.rows, nothing.sent, nothing.rejected, nothing.rejects) == (6, 0, 6, None)
    assert site.appended() == before + 5


@pytest.mark.parametrize("kept", [True, False])
def test_a_stream_is_sent_and_its_rejects_are_kept_or_counted(
    spark: SparkSession, site: Site, tmp_path: Path, kept: bool
) -> None:
    prefix, due = f"stream{kept}", now_ms() + HOUR_MS
    for part in range(2):
        made = rows(spark, f"{prefix}{part}", due, 30).withColumn(
            "due", F.when(F.col("text") != "text 3", F.col("due"))
        )
        made.coalesce(1).write.mode("append").parquet(f"file://{tmp_path}/in")
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"file://{tmp_path}/in")
    rejects = f"file://{tmp_path}/rejects" if kept else None
    for checkpoint in ("one", "two"):
        query = send_stream(
            stream,
            COLUMNS,
            site.bootstrap,
            f"file://{tmp_path}/{checkpoint}",
            rejects=rejects,
            once=True,
            shards=SHARDS,
        )
        assert query.awaitTermination(300)
        if not kept:
            seen = [progress["observedMetrics"][METRICS].asDict() for progress in query.recentProgress]
            assert [one for one in seen if one["rows"]] == [{"rows": 30, "rejected": 1}] * 2
    if kept:
        table = pq.read_table(tmp_path / "rejects")
        assert table["text"].to_pylist() == ["text 3"] * 4 and "due_ms" in table["reason"][0].as_py()
        assert len(set(table["query"].to_pylist())) == 2 and set(table["batch"].to_pylist()) == {0, 1}
    for part in range(2):
        assert {
            site.server.call("GET", f"/v1/messages/{prefix}{part}:{n}").status_code for n in range(30) if n != 3
        } == {200}
        assert site.server.call("GET", f"/v1/messages/{prefix}{part}:3").status_code == 404
    with pytest.raises(BadInput, match="a column of names"):
        send_stream(stream, Columns("due", "text", to="t"), site.bootstrap, "/c", rejects="/r", shards=1)


def test_commands_go_through_a_sink_of_one_s_own(spark: SparkSession, site: Site) -> None:
    """As the docs have it: Spark's own sink and nothing of ours but the columns."""
    frame = rows(spark, "sink", now_ms() + HOUR_MS, 5)
    commands_of(frame, COLUMNS, shards_of(site.bootstrap)).write.format("kafka").option(
        "kafka.bootstrap.servers", site.bootstrap
    ).save()
    assert [site.server.state(f"sink:{n}")["payload"] for n in range(5)] == [f"text {n}" for n in range(5)]


def command(*words: object) -> subprocess.CompletedProcess[str]:
    settings = (
        "--master",
        "local[2]",
        "--conf",
        "spark.driver.memory=800m",
        "--conf",
        "spark.sql.shuffle.partitions=2",
    )
    jars = {JARS_VARIABLE: str(spark_jars())}
    return subprocess.run(
        [str(DUEMQ), "spark", *map(str, words), *settings], capture_output=True, text=True, timeout=900,
        env=environment() | jars,
    )  # fmt: skip


def table_of(path: Path, due: int, count: int) -> Path:
    path.parent.mkdir(exist_ok=True)
    numbers = range(count)
    pq.write_table(pa.table({
        "at": [due + n for n in numbers], "n": list(numbers), "customer": [f"c{n % 3}" for n in numbers],
        "id": [f"cli-{n}" if n else None for n in numbers],
    }), path)  # fmt: skip
    return path


def test_the_command_counts_sends_and_rejects(site: Site, tmp_path: Path) -> None:
    table, before = table_of(tmp_path / "t.parquet", now_ms() - 5_000, 50), site.appended()
    mapped = ("--due", "at", "--to", "cli", "--payload", "n,customer", "--key", "customer", "--name", "id")
    dry = command("send", table, *mapped, "--dry-run", "--json")
    assert orjson.loads(dry.stdout) == {"rows": 50, "accepted": 49, "rejected": {"name": 1}}, dry.stderr
    assert site.appended() == before
    for run in range(2):
        done = command("send", table, *mapped, "--kafka", site.bootstrap, "--rejects", tmp_path / "rejects")
        assert done.returncode == 0, done.stderr
        said = done.stdout.splitlines()
        assert said[0] == f"49 of 50 rows are sent to {SHARDS} shards", run
        assert said[1] == "49 of them were due already"
        assert said[2].startswith("1 rows were rejected: file:///") and "sending to 3 shards" in done.stderr
    assert pq.read_table(tmp_path / "rejects")["n"].to_pylist() == [0, 0]
    found = arrived(site.server, "cli", 49)
    assert found == {f'{{"n":{n},"customer":"c{n % 3}"}}': 1 for n in range(1, 50)}
    assert site.server.call("GET", "/v1/messages/cli-49").json()["status"] == "delivered"
    strict = command("send", table, *mapped, "--kafka", site.bootstrap, "--strict", "--json")
    assert strict.returncode == 7 and "1 of 50 rows were rejected" in strict.stderr
    away = command("send", table, *mapped, "--kafka", "127.0.0.1:9", "--json")
    assert away.returncode == 8 and "does not answer" in orjson.loads(away.stdout)["error"]["detail"]


# --- what is due too soon for a file ----------------------------------------------------------------------------------


def test_rows_due_too_soon_are_sent_once_over_all_runs_of_the_job(
    new_server: Callable[..., Server], spark: SparkSession, tmp_path: Path
) -> None:
    stage = tmp_path / "stage"
    stage.mkdir()
    server = new_server("--set", f"delay_files.import_from={stage}").start()
    far = (now_ms() // WINDOW_MS + 4) * WINDOW_MS
    near = now_ms() + 1_000
    made = [{"at": near + n if n < 20 else far + n, "text": f"text {n}", "id": None if n == 5 else f"r-{n}"}
            for n in range(60)]  # fmt: skip
    made += [{"at": far, "text": "twice", "id": "two"}, {"at": far, "text": "twice", "id": "two"},
             {"at": None, "text": "no time", "id": "none"}, {"at": near, "text": "long", "id": "x" * 127}]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(made), tmp_path / "t.parquet")
    words = ("schedule", tmp_path / "t.parquet", "--due", "at", "--to", "near", "--payload", "text", "--stage", stage,
             "--job", "j", "--url", server.url, "--soon", "send", "--json")  # fmt: skip
    unnamed = command(*words)
    assert unnamed.returncode == 1 and "--soon send: rows need names" in unnamed.stderr
    strict = command(*words, "--name", "id", "--strict")
    assert strict.returncode == 1 and "does not go with --strict" in strict.stderr
    assert not list(stage.iterdir())
    done = command(*words, "--name", "id")
    assert done.returncode == 0, done.stderr
    said = orjson.loads(done.stdout)
    assert (said["scheduled"], said["rejected"], said["sent"], said["left"]) == (40, 24, 19, 5)
    answers = pq.read_table(said["answers"].removeprefix("file://")).to_pylist()
    assert sorted(row["name"] for row in answers if row["status"] == "accepted") == sorted(
        f"j:r-{n}" for n in range(20) if n != 5
    )
    assert all(row["detail"] for row in answers if row["status"] == "rejected")
    near_ones = {f"text {n}": 1 for n in range(20) if n != 5}
    assert arrived(server, "near", 19) == near_ones
    assert server.call("GET", "/v1/messages/j:r-7").json()["status"] == "delivered"
    # Again: the table says that all is done. Without it, as if the job had been killed before, all are repeats.
    manifest = JobFolder(stage, "j").manifest()
    assert manifest is not None
    columns = Columns("at", "text", to="near", name="id")
    again = send_soon(spark, manifest, columns, None)  # nobody is asked
    assert (again.sent, again.left, again.answers) == (19, 5, said["answers"])
    for part in Path(said["answers"].removeprefix("file://")).glob("*.parquet"):
        part.unlink()
    later = send_soon(spark, manifest, columns, server.url)
    assert (later.sent, later.left) == (19, 5)
    statuses = Counter(row["status"] for row in pq.read_table(said["answers"].removeprefix("file://")).to_pylist())
    assert statuses == {"repeated": 19, "rejected": 5}
    assert arrived(server, "near", 19) == near_ones
    for part in Path(said["answers"].removeprefix("file://")).glob("*.parquet"):
        part.unlink()
    with pytest.raises(JobFailed, match="began more than 24 hours ago"):
        send_soon(spark, manifest, columns, server.url, clock=lambda: manifest.began + 25 * HOUR_MS)
    rules = replace(BulkRules(), ahead_ms=-25 * HOUR_MS)  # the clock of this machine is wrong, not the server's
    late = send_soon(spark, manifest, columns, server.url, rules, clock=lambda: manifest.began + 25 * HOUR_MS)
    assert (late.sent, late.left) == (19, 5)


# --- killed -----------------------------------------------------------------------------------------------------------


def parts_of(path: Path, due: int) -> Path:
    path.mkdir()
    each = ROWS // PARTS
    for part in range(PARTS):
        numbers = range(part * each, (part + 1) * each)
        columns: dict[str, Any] = {
            "due": [due + n % 1_000 if n % 10 else due + HOUR_MS for n in numbers],
            "key": [f"k{n % 5}" for n in numbers],
            "text": [text_of(n) for n in numbers], "name": [f"row-{n}" for n in numbers],
            "part": pa.array([part] * each, pa.int32()),
        }  # fmt: skip
        pq.write_table(pa.table(columns), path / f"{part}.parquet")
        os.utime(path / f"{part}.parquet", (part + 1, part + 1))  # in this order
    return path


def text_of(number: int) -> str:
    return f"row {number} {'.' * 80}"


def test_each_row_is_delivered_once_although_executors_and_drivers_are_killed(tmp_path: Path) -> None:
    """Each in the middle of a batch, of which some rows are in Kafka and some are not."""
    folder, each = tmp_path / "run", ROWS // PARTS
    assert each >= 2 * ROWS_PASSED
    folder.mkdir()
    with opened(tmp_path) as site, SparkCluster(tmp_path, workers=2) as cluster:
        table, server = parts_of(tmp_path / "table", now_ms()), site.server

        def is_begun(part: int) -> bool:
            """Whether the first row of a file has come to the server; the last ones wait until they are let through."""
            return run.alive() and server.call("GET", f"/v1/messages/row-{part * each}").status_code == 200

        run = SparkProcess("send_run", folder, cluster.url, table, folder, site.bootstrap)
        try:
            wait_for(lambda: is_begun(0), "the first rows of the first file", PROCESS_S)
            killed = cluster.executors()
            assert killed
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            (folder / "open-0").touch()
            wait_for(lambda: is_begun(1), "the first rows of the second file", PROCESS_S)
        finally:
            run.kill()
        (folder / "open-1").touch()
        run = SparkProcess("send_run", folder, "local[2]", table, folder, site.bootstrap)
        try:
            wait_for(lambda: is_begun(2), "the first rows of the third file", PROCESS_S)
        finally:
            run.kill()
        for part in (2, 3):
            (folder / f"open-{part}").touch()
        run = SparkProcess("send_run", folder, "local[2]", table, folder, site.bootstrap)
        try:
            assert run.process.wait(900) == 0, run.log
        finally:
            run.kill()
        assert site.appended() >= ROWS + 3, "nothing was sent twice, so that this has shown nothing"
        due = [text_of(n) for n in range(ROWS) if n % 10]
        assert arrived(server, "orders", len(due)) == Counter(due)
        with Client(server.url, timeout=300) as client:
            pending = Counter(one.id for one in client.list(topic="orders"))
            assert len(pending) == sum(pending.values()) == ROWS // 10
            assert all(client.get(f"row-{n}").state.status == "scheduled" for n in range(0, ROWS, ROWS // 50))
        assert server.call("GET", "/v1/dlq").json()["messages"] == []
