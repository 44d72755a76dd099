"""What counts as the same job, and as the same file: nothing is taken for done that is not, nothing is sent twice."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from duemq.client.http.errors import PastDue
from duemq.client.http.values import FileImport
from duemq.model.timing import WINDOW_MS
from duemq.pipeline.bulk_schedule import files
from duemq.pipeline.bulk_schedule.files import WrittenFile
from duemq.pipeline.bulk_schedule.job import Options, schedule
from duemq.pipeline.bulk_schedule.manifest import JobFolder, JobManifest
from duemq.pipeline.bulk_schedule.plans import plan_of
from duemq.pipeline.bulk_schedule.server import hand_over, imported
from duemq.pipeline.columns import Columns
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.logs.tables import fingerprint, read_table
from duemq.pipeline.spark.progress import Silent
from duemq.storage.delay_files.columns import is_normal
from tests.e2e.server import environment, wait_for
from tests.support.spark.bulk_site import Sentences, Site, bulk_site, first_window, rows
from tests.support.spark.java import hadoop_settings_of
from tests.support.spark.spark_site import spark_tests

pytestmark = [*spark_tests, pytest.mark.slow]
COLUMNS = Columns("due", "body", to="orders")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with bulk_site(tmp_path_factory.mktemp("bulk")) as site:
        yield site


# --- files of equal rows ----------------------------------------------------------------------------------------------


def test_equal_rows_in_several_files_are_all_scheduled(
    spark: SparkSession, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MAX_ROWS", 10_000)
    alike = spark.range(0, 40_000, 1, 4).select(F.lit(first_window() + 5).alias("due"), F.lit("wake up").alias("body"))
    before = site.pending()
    done = schedule(alike, COLUMNS, "alike", Options(site.stage), site.server, source="s")
    assert done.manifest.accepted == 40_000 and len(done.manifest.files) == 4
    assert len({file.sha256 for file in done.manifest.files}) == 4
    # Nodes say that a file is imported; a proxy counts what is pending by the ledger, which it reads a moment later.
    wait_for(lambda: site.pending() - before == 40_000, "all rows are pending")
    found = done.ids.select("id")
    assert (found.count(), found.distinct().count()) == (40_000, 40_000)
    for file in done.manifest.files:
        path = site.stage / "alike" / file.path
        with pq.ParquetFile(path) as opened:
            assert is_normal(opened) and opened.read(["payload"])["payload"].unique().to_pylist() == [b"wake up"]
        assert path.stat().st_nlink == 2, "it was not linked"
    assert len(list((site.stage / "alike").glob("attempt-*/window=*/*.parquet"))) == 4


# --- the same id with other rows --------------------------------------------------------------------------------------


def test_another_filter_of_the_same_table_is_another_job(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    rows(spark, 10).withColumn("even", F.col("rank") % 2 == 0).write.parquet(str(tmp_path / "orders"))
    table = spark.read.parquet(str(tmp_path / "orders"))
    first = schedule(table.where("even"), COLUMNS, "filtered", Options(site.stage), site.server)
    again = schedule(table.where("even"), COLUMNS, "filtered", Options(site.stage), site.server)
    assert (first.manifest.accepted, first.again, again.again) == (5, False, True)
    for other in (table.where("not even"), table.where("even and rank < -3"), table.limit(5)):
        with pytest.raises(BadInput, match="another job needs another id"):
            schedule(other, COLUMNS, "filtered", Options(site.stage), site.server)
    wide = [F.col("rank").alias(f"r{number}") for number in range(40)]
    one, two = (table.select("due", "body", *wide).where(f"r39 > {least}") for least in (-3, -4))
    assert plan_of(one) != plan_of(two), "a plan of many columns is cut short"


_PLAN = """
import sys
from duemq.pipeline.bulk_schedule.plans import plan_of
from duemq.pipeline.spark.session import running
from duemq.pipeline.logs.tables import fingerprint
with running("plan", settings={"spark.driver.memory": "512m"}) as spark:
    for _ in range(int(sys.argv[2])):
        spark.range(3).selectExpr("id + 1 as x").collect()
    table = spark.read.csv(sys.argv[1], header=True, schema="due bigint, body string")
    table.createOrReplaceTempView("t")
    found = spark.sql("select due, upper(body) as body from t where exists (select 1 from t u where u.due < t.due)")
    print(fingerprint(table), plan_of(found.where("due > 3").join(table.limit(7), "due")))
"""


def test_a_job_is_known_again_by_another_process(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("due,body\n1,a\n")
    made = [
        subprocess.run(
            [sys.executable, "-c", _PLAN, tmp_path / "t.csv", str(number)], capture_output=True, text=True, timeout=300,
            env=environment(), check=False,
        )
        for number in range(2)
    ]  # fmt: skip
    assert [one.returncode for one in made] == [0, 0], made[0].stderr
    assert made[0].stdout == made[1].stdout and "Filter" in made[0].stdout


@pytest.mark.parametrize("scheme", ["file", "viewfs"])
def test_a_table_that_was_replaced_is_another_one_on_any_file_system(
    spark: SparkSession, site: Site, tmp_path: Path, scheme: str
) -> None:
    folder = tmp_path / "a table [1]%20"
    folder.mkdir()
    where = f"file://{folder}"
    if scheme == "viewfs":
        hadoop_settings_of(spark).set("fs.viewfs.mounttable.cl.link./data", f"file://{tmp_path}")
        where = f"viewfs://cl/data/{folder.name}"
    table = folder / "reminders.csv"

    def put(count: int) -> None:
        table.write_text("due,body\n" + "".join(f"{first_window() + n},row {n}\n" for n in range(count)))

    put(3)
    one = read_table(spark, f"{where.replace('[', chr(92) + '[').replace(']', chr(92) + ']')}/*.csv")
    said = fingerprint(one)
    assert said is not None and fingerprint(one) == said
    done = schedule(one, COLUMNS, f"daily-{scheme}", Options(site.stage), site.server)
    assert done.manifest.accepted == 3
    put(7)
    assert fingerprint(one) != said
    with pytest.raises(BadInput, match="another job needs another id"):
        schedule(one, COLUMNS, f"daily-{scheme}", Options(site.stage), site.server)
    table.unlink()
    with pytest.raises(BadInput, match="cannot be read"):
        fingerprint(one)


# --- a job that is gone on with ---------------------------------------------------------------------------------------


class Forgetful:
    """A server that knows these files, and refuses all others as too late."""

    def __init__(self, *known: WrittenFile, state: str = "imported") -> None:
        self.known, self.state, self.given = known, state, list[Any]()

    def imports(self, state: str | None = None, below: str = "") -> list[FileImport]:
        return [
            FileImport.from_json({
                "id": f"0-{number}", "path": f"/x/{file.path}", "state": self.state, "sha256": file.sha256,
                "size": 1, "window": 0, "rows": 3, "duplicate": False, "reason": "it was wrong",
            })
            for number, file in enumerate(self.known)
        ]  # fmt: skip

    def count_imports(self, state: str, below: str = "") -> int:
        return 0

    def import_files(self, said: Any, link: bool) -> None:
        self.given.append(said)
        raise PastDue("past_due", "file 0: its window begins in less than 120 s")


def written(stage: Path, *windows: int) -> tuple[JobFolder, JobManifest]:
    """A job of one file for each of these windows, of three rows each."""
    folder, made = JobFolder(stage, "late"), list[WrittenFile]()
    for number, window in enumerate(windows):
        Path(folder.stage.path(f"{number}.parquet")).write_bytes(b"x")
        made.append(WrittenFile(f"{number}.parquet", str(number) * 64, 1, window, 3))
    return folder, folder.settle(JobManifest("late", 0, {}, "s", "p", "a", 3 * len(made), 0, None, tuple(made)))


def given(server: Forgetful, folder: JobFolder, manifest: JobManifest) -> frozenset[str]:
    client: Any = server
    return hand_over(client, manifest, folder, link=True)


def test_what_was_handed_over_and_is_forgotten_is_not_handed_over_again(tmp_path: Path) -> None:
    folder, manifest = written(tmp_path, 0, WINDOW_MS)
    folder.record_hand_over(1_800_000_000_000)
    server = Forgetful()
    assert given(server, folder, manifest) == {"0.parquet", "1.parquet"} and not server.given
    assert folder.handed_at() == 1_800_000_000_000
    client: Any = server
    found = imported(client, manifest, folder, Silent(), frozenset({"0.parquet", "1.parquet"}))
    assert found == {"0.parquet": None, "1.parquet": None}


def test_a_file_that_is_known_says_that_all_were_handed_over(tmp_path: Path) -> None:
    """`resumed_late.py` of the review: the one is imported and delivered and forgotten, the other one is imported."""
    folder, manifest = written(tmp_path, 0, WINDOW_MS)
    server = Forgetful(manifest.files[1])
    assert given(server, folder, manifest) == {"0.parquet"} and not server.given
    assert folder.handed_at() is not None
    client: Any = server
    found = imported(client, manifest, folder, Silent(), frozenset({"0.parquet"}))
    assert found == {"0.parquet": None, "1.parquet": "0-0"}


def test_what_cannot_be_known_any_more_is_said_and_no_advice_is_given_that_doubles(tmp_path: Path) -> None:
    folder, manifest = written(tmp_path, 0, WINDOW_MS)
    server = Forgetful()
    with pytest.raises(JobFailed, match="rows were scheduled is unknown") as failed:
        given(server, folder, manifest)
    assert not server.given and "another job id" not in str(failed.value) and folder.handed_at() is None


def test_what_was_never_handed_over_may_be_scheduled_under_another_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq.pipeline.bulk_schedule.server._AGAIN_S", 0)
    folder, manifest = written(tmp_path, 0, (int(time.time() * 1000) // WINDOW_MS + 1) * WINDOW_MS)
    server = Forgetful()
    with pytest.raises(JobFailed, match="6 rows were not handed over in time, nothing is scheduled"):
        given(server, folder, manifest)
    assert len(server.given[0]) == 2 and folder.handed_at() is None


def test_what_was_refused_and_has_come_too_late_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.pipeline.bulk_schedule.server._AGAIN_S", 0)
    folder, manifest = written(tmp_path, 0, WINDOW_MS)
    folder.record_hand_over(1)
    with pytest.raises(JobFailed, match="3 of 6 rows of job late are not scheduled") as failed:
        given(Forgetful(manifest.files[0], state="rejected"), folder, manifest)
    assert "0.parquet" in str(failed.value) and "another job id" not in str(failed.value)


@pytest.mark.parametrize("step", ["accepted", "handed_over", "waiting"])
def test_a_driver_that_dies_after_the_hand_over_is_succeeded(spark: SparkSession, site: Site, step: str) -> None:
    def die(reached: str) -> None:
        if reached == step:
            raise RuntimeError("the driver died")

    frame, told, before = rows(spark, 30, prefix=step), Sentences(), site.pending()
    with pytest.raises(RuntimeError, match="the driver died"):
        schedule(frame, COLUMNS, f"died-{step}", Options(site.stage), site.server, failpoint=die)
    folder = JobFolder(site.stage, f"died-{step}")
    assert (folder.handed_at() is None) == (step == "accepted") and folder.imports() is None
    done = schedule(frame, COLUMNS, f"died-{step}", Options(site.stage), site.server, teller=told)
    assert done.ids.count() == 30 and done.forgotten == 0
    wait_for(lambda: site.pending() - before == 30, "all rows are pending, each once")
    assert folder.handed_at() is not None and any("was written before" in sentence for sentence in told.said)
