"""Bulk schedule as a function, against a proxy with three shards in a thread: files, order, and what goes wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duemq.client import Client
from duemq.model.ids import peek
from duemq.pipeline.bulk.columns import Columns
from duemq.pipeline.bulk.job import Options, RowsRejected, Scheduled, schedule
from duemq.pipeline.bulk.manifest import JobFolder
from duemq.pipeline.bulk.rules import Rules
from duemq.pipeline.bulk.stage import FolderStage
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.server import Server
from duemq.storage.exchange import is_normal
from duemq.storage.intake import inspect
from duemq.storage.intake_rules import AdoptLimits
from duemq.storage.rows import WINDOW_MS
from tests.proxy_site import proxy_site
from tests.spark_site import spark_tests

pytestmark = [*spark_tests, pytest.mark.slow]
COLUMNS = Columns("due", "body", to="orders", key="key", name="name", order=("rank",))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("bulk")
    (folder / "shared").mkdir()
    with proxy_site(folder / "data") as url:
        yield url, folder / "shared"


def first_window() -> int:
    return (int(time.time() * 1000) // WINDOW_MS + 3) * WINDOW_MS


def rows(spark: SparkSession, count: int, windows: int = 3, prefix: str = "n") -> DataFrame:
    start = first_window()
    return spark.range(0, count, 1, 4).select(
        (F.lit(start) + F.pmod(F.col("id") * 999_983, F.lit(windows * WINDOW_MS))).alias("due"),
        F.concat(F.lit("payload of "), "id").alias("body"),
        F.concat(F.lit("k"), F.col("id") % 5).alias("key"),
        F.concat(F.lit(prefix), "id").alias("name"),
        (-F.col("id")).alias("rank"),
    )


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
        found = inspect(path, AdoptLimits())
        assert (found.sha256, found.rows, found.size, found.window) == (file.sha256, file.rows, file.size, file.window)
        assert path.stat().st_nlink == 2, "it was not linked"
    ids = done.ids.cache()
    assert ids.columns == ["id", "name", "topic", "key", "due_ms", "file", "row"]
    joined = frame.join(ids, "name").where("due = due_ms")
    assert joined.count() == 9_000 and ids.select("id").distinct().count() == 9_000
    assert len({peek(row.id).shard for row in ids.collect()}) > 1
    row = ids.where("name = 'n77'").first()
    assert row is not None
    with Client(url) as client:
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
    frame, both = rows(spark, 60, prefix="two"), list[Scheduled]()

    def meanwhile(step: str) -> None:
        if step == "before_manifest" and not both:
            both.append(schedule(frame, COLUMNS, "two", Options(stage), Server(url)))

    second = schedule(frame, COLUMNS, "two", Options(stage), Server(url), fault=meanwhile)
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


def test_what_the_server_refuses_is_told(spark: SparkSession, site: tuple[str, Path]) -> None:
    url, stage = site
    large = rows(spark, 40, 2, "large").withColumn(
        "body", F.when(F.col("rank") == -1, F.repeat(F.lit("x"), 2 << 20)).otherwise("x")
    )
    lax = Rules(AdoptLimits(max_payload_bytes=4 << 20))
    with pytest.raises(JobFailed) as failed:
        schedule(large, COLUMNS, "refused", Options(stage), Server(url), rules=lax)
    assert "the server refused 1 of 2 files" in str(failed.value) and "the limit is 1048576" in str(failed.value)
    gone = rows(spark, 40, 1, "gone")

    def remove(step: str) -> None:
        if step == "manifest":
            for path in (stage / "gone").glob("attempt-*/window=*/*.parquet"):
                path.unlink()

    with pytest.raises(JobFailed, match="is not there any more"):
        schedule(gone, COLUMNS, "gone", Options(stage), Server(url), fault=remove)
    with Client(url) as client:
        assert not [one for one in client.adoptions() if "/gone/" in one.path]


def test_a_job_that_comes_too_late_is_told_what_of_it_is_scheduled(spark: SparkSession, site: tuple[str, Path]) -> None:
    url, stage = site
    late = rows(spark, 20, prefix="late").withColumn(
        "due", F.when(F.col("rank") < -9, first_window() - 3 * WINDOW_MS).otherwise(F.col("due"))
    )
    with pytest.raises(JobFailed, match="20 rows were not handed over in time, nothing is scheduled"):
        schedule(late, COLUMNS, "late", Options(stage), Server(url), rules=Rules(lead_ms=-WINDOW_MS))
    with Client(url) as client:
        assert not [one for one in client.adoptions() if "/late/" in one.path]


def test_nothing_to_schedule_is_no_error(spark: SparkSession, site: tuple[str, Path]) -> None:
    url, stage = site
    empty: dict[str, Any] = {"due": F.lit(None).cast("bigint")}
    done = schedule(rows(spark, 5).withColumns(empty), COLUMNS, "none", Options(stage), Server(url))
    assert (done.manifest.rows, done.manifest.rejected, done.manifest.files) == (5, 5, ())
    assert done.ids.count() == 0
