"""Bulk schedule as a function, against a proxy with three shards in a thread: files, order, and what goes wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duemq.client import Admin
from duemq.delay.reads.local_reader import LocalReader
from duemq.model.errors import Rejected
from duemq.model.messages.ids import peek
from duemq.model.timing import WINDOW_MS
from duemq.pipeline.bulk_schedule import files
from duemq.pipeline.bulk_schedule.ids import write_ids
from duemq.pipeline.bulk_schedule.job import Options, ScheduleResult, schedule
from duemq.pipeline.bulk_schedule.manifest import JobFolder
from duemq.pipeline.bulk_schedule.rules import BulkRules
from duemq.pipeline.bulk_schedule.stage import FolderStage
from duemq.pipeline.columns import OWN, Columns
from duemq.pipeline.errors import BadInput, JobFailed, RowsRejected
from duemq.pipeline.logs.server import Server
from duemq.storage.delay_files.columns import is_normal
from duemq.storage.imports.import_file import inspect
from duemq.storage.limits import ImportLimits
from tests.support.spark.bulk_site import Sentences, bulk_site, first_window, rows
from tests.support.spark.java import java_of
from tests.support.spark.spark_site import spark_tests

pytestmark = [*spark_tests, pytest.mark.slow]
COLUMNS = Columns("due", "body", to="orders", key="key", name="name", order=("rank",))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    with bulk_site(tmp_path_factory.mktemp("bulk")) as site:
        yield site.url, site.stage


def test_rows_become_messages_of_several_shards_with_ids_that_join(
    spark: SparkSession, site: tuple[str, Path], tmp_path: Path
) -> None:
    url, stage = site
    frame = rows(spark, 9_000, 1)
    spark.conf.set("spark.sql.adaptive.advisoryPartitionSizeInBytes", "32k")  # as if they were many
    try:
        done = schedule(frame, COLUMNS, "several", Options(stage), Server(url))
    finally:
        spark.conf.unset("spark.sql.adaptive.advisoryPartitionSizeInBytes")
    manifest = done.manifest
    assert (manifest.rows, manifest.rejected, manifest.rejects, done.again) == (9_000, 0, None, False)
    assert len(manifest.files) > 2 and len({file.window for file in manifest.files}) == 1
    for file in manifest.files:
        path = stage / "several" / file.path
        with pq.ParquetFile(path) as opened:
            assert is_normal(opened)
            assert opened.metadata.row_group(0).num_rows <= 4_096
            span = opened.read(columns=["due_ms"])["due_ms"].to_numpy()
            assert span[-1] - span[0] > WINDOW_MS // 2, "a file of a large window must span it"
        found = inspect(path, ImportLimits())
        assert (found.sha256, found.rows, found.size, found.window) == (file.sha256, file.rows, file.size, file.window)
        assert path.stat().st_nlink == 2, "it was not linked"
    ids = done.ids.cache()
    assert ids.columns == ["id", "name", "topic", "key", "due_ms", "file", "row"]
    joined = frame.join(ids, "name").where("due = due_ms")
    assert joined.count() == 9_000 and ids.select("id").distinct().count() == 9_000
    assert len({peek(row.id).shard for row in ids.collect()}) > 1
    row = ids.where("name = 'n77'").first()
    assert row is not None
    with Admin(url) as client:
        state = client.get(row.id).state
        assert (state.payload, state.key, state.deliver_at_ms) == (b"payload of 77", "k2", row.due_ms)
        assert client.cancel_many([row.id]).counts["cancelled"] == 1
    ids.unpersist()


def test_what_is_due_together_is_in_the_order_that_is_given(spark: SparkSession, site: tuple[str, Path]) -> None:
    url, stage = site
    frame = rows(spark, 5_000, 1, "o").withColumn("due", F.lit(first_window()) + F.col("rank") % 3 + 3)
    done = schedule(frame, COLUMNS, "ordered", Options(stage), Server(url))
    for file in done.manifest.files:
        table = pq.read_table(stage / "ordered" / file.path)
        ranks = [-int(name[1:]) for name in table["name"].to_pylist()]
        seen = list(zip(table["due_ms"].to_pylist(), ranks, strict=True))
        assert seen == sorted(seen)


def test_a_job_is_done_once_and_another_one_of_its_id_is_refused(spark: SparkSession, site: tuple[str, Path]) -> None:
    url, stage = site
    frame = rows(spark, 50, prefix="once").withColumn("bad", F.col("rank") < -45)
    wrong = frame.withColumn("due", F.when(~F.col("bad"), F.col("due")))
    with pytest.raises(RowsRejected, match="4 of 50 rows"):
        schedule(wrong, COLUMNS, "strict", Options(stage, strict=True), Server(url))
    assert JobFolder(FolderStage(stage / "strict"), "strict").manifest() is None
    assert [path.name for path in (stage / "strict").glob("attempt-*/*")] == ["rejects"], "a copy of the table is left"
    first = schedule(wrong, COLUMNS, "once", Options(stage), Server(url), source="s")
    assert (first.manifest.accepted, first.manifest.rejected) == (46, 4)
    apart = spark.read.parquet(f"file://{first.manifest.rejects}")
    assert apart.columns == [*wrong.columns, "reason"] and apart.count() == 4
    before = (stage / "once" / "manifest.json").read_bytes()
    again = schedule(wrong, COLUMNS, "once", Options(stage), Server(url), source="s")
    assert again.again and again.manifest == first.manifest
    assert (stage / "once" / "manifest.json").read_bytes() == before
    assert sorted(again.ids.collect()) == sorted(first.ids.collect())
    with pytest.raises(BadInput, match="another job needs another id"):
        schedule(wrong, COLUMNS, "once", Options(stage), Server(url), source="t")
    with pytest.raises(BadInput, match="another job needs another id"):
        schedule(wrong, Columns("due", "body", to="other"), "once", Options(stage), Server(url), source="s")
    with pytest.raises(BadInput, match="a job's id"):
        schedule(wrong, COLUMNS, "../x", Options(stage), Server(url))
    other = schedule(wrong, COLUMNS, "twice", Options(stage), Server(url), source="s")
    assert not {row.id for row in other.ids.collect()} & {row.id for row in first.ids.collect()}, "its rows are its own"


def test_of_two_drivers_the_first_one_s_manifest_counts(spark: SparkSession, site: tuple[str, Path]) -> None:
    url, stage = site
    frame, both = rows(spark, 60, prefix="two"), list[ScheduleResult]()

    def meanwhile(step: str) -> None:
        if step == "before_manifest" and not both:
            both.append(schedule(frame, COLUMNS, "two", Options(stage), Server(url)))

    second = schedule(frame, COLUMNS, "two", Options(stage), Server(url), failpoint=meanwhile)
    assert second.manifest == both[0].manifest
    assert [path.name for path in (stage / "two").iterdir() if path.is_dir()] == [second.manifest.attempt]
    assert second.ids.count() == 60


def test_a_source_that_changes_while_it_is_read_stops_the_job(
    spark: SparkSession, site: tuple[str, Path], tmp_path: Path
) -> None:
    url, stage = site
    other_each_time = F.expr("cast(reflect('java.lang.Math', 'random') as double) < 0.5")
    frame = rows(spark, 100, prefix="change").withColumn("due", F.when(other_each_time, F.col("due")))
    with pytest.raises(JobFailed, match="the source changed while it was read"):
        schedule(frame, COLUMNS, "changes", Options(stage), Server(url))
    assert list((stage / "changes").iterdir()) == []


def test_rows_that_change_places_with_rejected_ones_stop_the_job(spark: SparkSession, site: tuple[str, Path]) -> None:
    """As many rows are rejected when they are written apart as when the files were written, but it is another one."""
    url, stage = site
    java = java_of(spark)
    java.System.setProperty("duemq.test.bad", "-3")
    bad = F.expr("reflect('java.lang.System', 'getProperty', 'duemq.test.bad')").cast("bigint")
    frame = rows(spark, 20, prefix="places").withColumn("due", F.when(F.col("rank") != bad, F.col("due")))

    def change(step: str) -> None:
        if step == "written":
            java.System.setProperty("duemq.test.bad", "-5")

    with pytest.raises(JobFailed, match="the source changed while it was read"):
        schedule(frame, COLUMNS, "places", Options(stage), Server(url), source="s", failpoint=change)
    assert list((stage / "places").iterdir()) == []


def test_rows_that_are_other_ones_behind_the_shuffle_stop_the_job(
    spark: SparkSession, site: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a lost executor, whose part of the source is read again and gives as many rows: one twice, one not."""
    url, stage = site
    messages = files.messages

    def changed(judged: DataFrame, *others: Any) -> DataFrame:
        third = F.col("rank") == -3
        twice = {OWN + "payload": F.when(third, F.lit(b"payload of 5")).otherwise(F.col(OWN + "payload"))}
        return messages(judged.withColumns(twice), *others)

    monkeypatch.setattr(files, "messages", changed)
    with pytest.raises(JobFailed, match="the source changed while it was read"):
        schedule(rows(spark, 20, prefix="other"), COLUMNS, "other", Options(stage), Server(url))


def test_what_the_server_refuses_is_told(spark: SparkSession, site: tuple[str, Path]) -> None:
    url, stage = site
    large = rows(spark, 40, 2, "large").withColumn(
        "body", F.when(F.col("rank") == -1, F.repeat(F.lit("x"), 2 << 20)).otherwise("x")
    )
    lax = BulkRules(ImportLimits(max_payload_bytes=4 << 20))
    with pytest.raises(JobFailed) as failed:
        schedule(large, COLUMNS, "refused", Options(stage), Server(url), rules=lax)
    assert "the server refused 1 of 2 files" in str(failed.value) and "the limit is 1048576" in str(failed.value)
    gone = rows(spark, 40, 1, "gone")

    def remove(step: str) -> None:
        if step == "manifest":
            for path in (stage / "gone").glob("attempt-*/window=*/*.parquet"):
                path.unlink()

    with pytest.raises(JobFailed, match="is not there any more"):
        schedule(gone, COLUMNS, "gone", Options(stage), Server(url), failpoint=remove)
    with Admin(url) as client:
        assert not [one for one in client.imports() if "/gone/" in one.path]


def test_rows_whose_window_has_come_too_near_while_they_were_written_are_rejected(
    spark: SparkSession, site: tuple[str, Path]
) -> None:
    """As if writing had taken as long as brings the first of three windows too near, and the rejects the second."""
    url, stage = site
    start, told = first_window(), Sentences()
    frame = rows(spark, 60, prefix="slow").withColumn("due", F.lit(start) - F.col("rank") % 3 * WINDOW_MS)
    now = [int(time.time() * 1000)]

    def later(step: str) -> None:
        if step in ("written", "rejects"):
            now[0] = start - 60_000 + (WINDOW_MS if step == "rejects" else 0)

    done = schedule(
        frame, COLUMNS, "slow", Options(stage), Server(url), clock=lambda: now[0], teller=told, failpoint=later
    )  # fmt: skip
    kept = frame.where(F.col("due") >= start + 2 * WINDOW_MS)
    assert done.manifest.accepted == kept.count() == 20
    assert {file.window for file in done.manifest.files} == {start + 2 * WINDOW_MS}
    apart = spark.read.parquet(f"file://{done.manifest.rejects}")
    assert apart.count() == done.manifest.rejected == 60 - kept.count()
    assert apart.where("reason like 'due_ms (column due): % begins sooner than % ms after %'").count() == apart.count()
    assert sorted(row.name for row in done.ids.collect()) == sorted(row.name for row in kept.collect())
    assert any("have come too near while the files were written" in sentence for sentence in told.said)
    now[0] = int(time.time() * 1000)
    with pytest.raises(RowsRejected, match="40 of 60 rows"):
        schedule(
            frame, COLUMNS, "strictly", Options(stage, strict=True), Server(url), clock=lambda: now[0], failpoint=later
        )  # fmt: skip


def test_nothing_to_schedule_is_no_error(spark: SparkSession, site: tuple[str, Path]) -> None:
    url, stage = site
    empty: dict[str, Any] = {"due": F.lit(None).cast("bigint")}
    done = schedule(rows(spark, 5).withColumns(empty), COLUMNS, "none", Options(stage), Server(url))
    assert (done.manifest.rows, done.manifest.rejected, done.manifest.files) == (5, 5, ())
    assert done.ids.count() == 0


def test_the_table_of_ids_outlives_every_rerun(
    spark: SparkSession, site: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has loaded one window keeps its file no more: those ids are left out and counted."""
    url, stage = site
    frame, table = rows(spark, 60, prefix="kept"), tmp_path / "ids"
    asked, listed = list[str](), Admin.imports

    def imports(self: Admin, state: str | None = None, below: str = "") -> Any:
        asked.append(below)
        return listed(self, state, below)

    monkeypatch.setattr(Admin, "imports", imports)
    done = schedule(frame, COLUMNS, "kept", Options(stage), Server(url), source="s")
    attempt, uri = done.manifest.attempt, f"file://{table}"
    assert set(asked) == {f"{stage}/kept/"}, "it lists the imports of others"
    spark.range(3).write.parquet(uri)  # another table
    assert write_ids(done.ids, attempt, uri) == 60
    first = done.manifest.files[0]
    answered = LocalReader.imported_ids

    async def loaded(self: LocalReader, shard: int, offset: int, start: int, most: int) -> bytes | None:
        found = self._shard(shard).store.imports.get(offset)
        if found is not None and found.import_command.path.endswith(first.path):
            raise Rejected("no_ids", "it is no longer kept: its messages are due", "id")
        return await answered(self, shard, offset, start, most)

    monkeypatch.setattr(LocalReader, "imported_ids", loaded)
    for kept in (60, 60 - first.rows):
        again = schedule(frame, COLUMNS, "kept", Options(stage), Server(url), source="s")
        assert write_ids(again.ids, attempt, uri) == pq.read_table(table).num_rows == kept
        rmtree(table)
    assert write_ids(again.ids, attempt, uri) == 60 - first.rows
    table.rename(f"{table}.{attempt}")  # as if the run had ended before it was renamed
    assert write_ids(again.ids, attempt, uri) == 60 - first.rows
    assert [path.name for path in tmp_path.iterdir()] == ["ids"]
