"""The files of a bulk job: how many there are, what is written of odd tables, and a stage that can do less."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from duemq.model.timing import WINDOW_MS
from duemq.pipeline.bulk_schedule import attempt, files, rules
from duemq.pipeline.bulk_schedule.attempt import WriteDeadline
from duemq.pipeline.bulk_schedule.job import Options, schedule
from duemq.pipeline.bulk_schedule.manifest import JobFolder, JobManifest
from duemq.pipeline.bulk_schedule.rules import REASON, BulkRules, judged, repeated_names
from duemq.pipeline.columns import OWN, Columns
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.files.uris import uri_of
from duemq.pipeline.spark.failures import failures_told
from duemq.pipeline.spark.session import LOCAL, chosen_settings
from tests.support.spark.bulk_site import Sentences, Site, bulk_site, first_window, rows, setting
from tests.support.spark.spark_site import spark_tests

pytestmark = [*spark_tests, pytest.mark.slow]
COLUMNS = Columns("due", "body", to="orders")
ADVISORY = "spark.sql.adaptive.advisoryPartitionSizeInBytes"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with bulk_site(tmp_path_factory.mktemp("bulk")) as site:
        yield site


# --- how many ---------------------------------------------------------------------------------------------------------


def per_window(frame: DataFrame, folder: Path) -> Counter[str]:
    told = judged(frame, COLUMNS, BulkRules(), first_window() - 3 * WINDOW_MS)
    files.write(files.messages(told, COLUMNS, "j"), uri_of(folder))
    return Counter(path.parent.name for path in folder.glob("window=*/*.parquet"))


def wide(spark: SparkSession, count: int, windows: int) -> DataFrame:
    spread = F.pmod(F.xxhash64("id"), F.lit(windows * WINDOW_MS))
    text = F.concat(F.sha1(F.col("id").cast("string")), F.sha1((F.col("id") + 1).cast("string")))
    return spark.range(0, count, 1, 8).select((F.lit(first_window()) + spread).alias("due"), text.alias("body"))


def test_a_window_is_one_file_although_all_of_them_are_many_times_what_a_task_writes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """`files_fix.py` of the review: sizes are scaled, so that it is as with 200 million rows over 300 windows."""
    with setting(spark, ADVISORY, "64k"):
        found = per_window(wide(spark, 200_000, 300), tmp_path / "even")
    assert len(found) == 300 and sum(found.values()) <= 1.2 * 300, found


def test_a_window_that_is_hot_is_shared_out(spark: SparkSession, tmp_path: Path) -> None:
    hot = F.when(F.col("due") % 10 < 8, F.lit(first_window()) + F.col("due") % WINDOW_MS).otherwise(F.col("due"))
    with setting(spark, ADVISORY, "64k"):
        found = per_window(wide(spark, 60_000, 50).withColumn("due", hot), tmp_path / "hot")
    most = found.pop(f"window={first_window()}")
    assert most >= 8 and sum(found.values()) <= 1.2 * len(found), (most, found)


def test_more_files_than_the_server_takes_at_once_are_refused_before_the_manifest(
    spark: SparkSession, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "MAX_FILES", 2)
    with pytest.raises(
        JobFailed, match=r"3 files were written, for 3 windows .* takes 2 files at once: nothing is sch"
    ):
        schedule(rows(spark, 30), COLUMNS, "many", Options(site.stage), site.server)
    assert list((site.stage / "many").iterdir()) == []


def test_shuffle_partitions_are_set_for_one_machine_only() -> None:
    name = "spark.sql.shuffle.partitions"
    assert chosen_settings({})[name] == LOCAL[name] == chosen_settings({"spark.master": "local[4]"})[name]
    assert name not in chosen_settings({"spark.master": "spark://host:7077"})
    assert chosen_settings({name: "7"})[name] == "7"


# --- when it takes long -----------------------------------------------------------------------------------------------


def test_that_writing_takes_longer_than_the_lead_is_told_once_and_early() -> None:
    told, now = Sentences(), [0]
    pace = WriteDeadline(told, 0, 600_000, lambda: now[0])
    for done, at in ((1, 30_000), (2, 40_000), (3, 60_000), (4, 80_000)):
        now[0] = at
        pace.share(done, 30)
    assert not told.said, "600 s are just enough"
    now[0] = 120_000
    pace.share(5, 30)
    pace.share(6, 40)
    (said,) = told.said
    assert said.startswith("5 of 30 tasks took 120 s: writing ends at 00:12:00 UTC or later, and the lead at 00:10:00")


# --- odd tables -------------------------------------------------------------------------------------------------------


def test_column_names_may_have_backticks_and_dots(spark: SparkSession, site: Site) -> None:
    odd = {"due": "a`due", "body": "the.body", "rank": "`", "name": "n`.`m"}
    frame = rows(spark, 20, prefix="odd").withColumnsRenamed(odd)
    frame = frame.withColumn("a`due", F.when(F.col("````") != -3, F.col("`a``due`")))
    frame = frame.withColumn("until`", F.col("`a``due`") + 5)
    columns = Columns("a`due", "the.body", to="o", expires="until`", name="n`.`m", order=("`",))
    done = schedule(frame, columns, "odd", Options(site.stage), site.server)
    assert (done.manifest.accepted, done.manifest.rejected) == (19, 1)
    apart = spark.read.parquet(f"file://{done.manifest.rejects}")
    assert apart.columns == [*frame.columns, "reason"] and apart.count() == 1


def test_rejected_rows_may_have_columns_that_no_file_can_hold(spark: SparkSession, site: Site) -> None:
    frame = spark.sql(
        f"""select if(id = 1, null, {first_window()}) as due, 'x' as body, null as nothing, array() as none,
            make_interval(0, 1) as span, named_struct('a', null) as deep, map('k', null) as pairs,
            interval 2 days as days from range(3)"""
    )
    done = schedule(frame, COLUMNS, "void", Options(site.stage), site.server)
    apart = spark.read.parquet(f"file://{done.manifest.rejects}").drop("due", "body", "reason").first()
    assert apart is not None and apart.asDict() == {
        "nothing": None, "none": "[]", "span": "1 months", "deep": "{null}", "pairs": "{k -> null}",
        "days": apart.days,
    }  # fmt: skip
    assert apart.days.days == 2


@pytest.mark.parametrize("most", [100, 1])
def test_names_are_compared_without_a_shuffle_of_the_rows(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Unless more of them are repeated than executors should get: then the names come to the rows by a shuffle."""
    monkeypatch.setattr(rules, "_MAX_REPEATED", most)
    names = ["a", "b", "b", "c", "c", "c", None, None, "d"]
    frame = spark.createDataFrame([(name,) for name in names], "n string")
    frame = frame.withColumns({"due": F.lit(first_window()), "body": F.lit("x")})
    columns = Columns("due", "body", to="orders", name="n")
    with repeated_names(frame, columns) as repeated:
        assert (repeated is None) == (most == 1)
        told = judged(frame, columns, BulkRules(), first_window() - 3 * WINDOW_MS, repeated)
        found = {(row.n, row[OWN + REASON]) for row in told.collect()}
    sentence = "name (column n): {} rows have it; names must be unique in a job"
    expected = {"b": sentence.format(2), "c": sentence.format(3)}
    assert found == {(name, expected.get(name or "")) for name in names}


def test_where_no_name_is_repeated_nothing_is_joined(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    columns = Columns("due", "body", to="orders", name="name")
    with repeated_names(rows(spark, 50), columns) as repeated:
        told = judged(rows(spark, 50), columns, BulkRules(), first_window() - 3 * WINDOW_MS, repeated)
        told.explain()
        assert told.where(F.col(OWN + REASON).isNull()).count() == 50
    plan = capsys.readouterr().out
    assert "Join" not in plan and "Exchange" not in plan, plan


def test_sums_tell_rows_apart_that_are_as_many(spark: SparkSession) -> None:
    def of(*numbers: int) -> Any:
        frame = spark.createDataFrame([(number,) for number in numbers], "_duemq_due_ms bigint")
        seen = Observation()
        frame.observe(seen, *files.sums(frame).values()).collect()
        counted = frame.agg(*files.sums(frame).values()).first()
        assert counted is not None and counted.asDict() == seen.get
        return seen.get

    assert of(1, 2, 3) == of(3, 1, 2) != of(1, 2, 2)
    assert of(1, 1, 2, 2) != of(3, 3, 2, 2), "rows that are there twice cancel each other out in the xor"
    assert of() == {"rows": 0, "sum": 0, "xor": 0}


# --- a stage that can do less -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_stage_without_hard_links_will_do(
    spark: SparkSession, site: Site, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    job = f"no-links-{number}"
    with monkeypatch.context() as without:
        without.setattr(os, "link", refuse)
        folder = JobFolder(site.stage, job)
        first = schedule(rows(spark, 9), COLUMNS, job, Options(site.stage), site.server, source="s")
        second = JobManifest(job, 0, {}, "s", "p", "attempt-other", 1, 1, None, ())
        assert folder.settle(second) == first.manifest, "the first one counts"
        assert schedule(rows(spark, 9), COLUMNS, job, Options(site.stage), site.server, source="s").again
    assert not list(Path(folder.stage.place).glob("*.new"))


def test_a_document_that_its_writer_did_not_finish_is_told(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq.pipeline.bulk_schedule.manifest._READ_S", 0)
    folder = JobFolder(tmp_path, "torn")
    Path(folder.stage.path("manifest.json")).write_bytes(b'{"job": "to')
    with pytest.raises(JobFailed, match=r"manifest\.json is damaged.* make sure that no other run"):
        folder.manifest()


def test_a_stage_that_cannot_be_used_is_told_before_anything_is_written(
    spark: SparkSession, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as without:
        without.setattr(os, "link", refuse)
        with pytest.raises(BadInput, match=r"the stage .* cannot be used: .*Read-only file system"):
            schedule(rows(spark, 3), COLUMNS, "read-only", Options(site.stage), site.server)
    assert not list((site.stage / "read-only").glob("attempt-*"))
    (site.stage / "a-file").touch()
    with pytest.raises(BadInput, match=r"the stage .* cannot be used"):
        schedule(rows(spark, 3), COLUMNS, "j", Options(site.stage / "a-file"), site.server)


def test_an_executor_that_cannot_write_is_told_in_one_sentence(
    spark: SparkSession, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobFolder, "new_attempt", lambda _: "/proc/no-such-folder/attempt-x")
    with pytest.raises(JobFailed) as failed, failures_told("Run it again"):
        schedule(rows(spark, 3), COLUMNS, "unwritable", Options(site.stage), site.server)
    said = str(failed.value)
    assert said.startswith("Spark could not do its work: IOException: Mkdirs failed") and said.endswith(
        ". Run it again"
    )
    assert "\n" not in said and len(said) < 400, said

    def broken(batches: Any) -> Any:
        raise ValueError("it is wrong")
        yield

    with pytest.raises(JobFailed) as failed, failures_told("Run it again"):
        frame = rows(spark, 3)
        schedule(frame.mapInArrow(broken, frame.schema), COLUMNS, "broken", Options(site.stage), site.server)
    assert str(failed.value) == "Spark could not do its work: ValueError: it is wrong. Run it again"
