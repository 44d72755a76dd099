"""The tables of a history in each format: every batch once, whatever dies, and in few files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duemq.model.failpoint import no_failpoint
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.history.formats import base, committed, delta, iceberg, parquet
from duemq.pipeline.history.table import FORMATS, HistoryTable
from duemq.pipeline.spark.session import override
from tests.support.spark.other_file_system import other_file_system
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests

DAY_MS = 86_400_000
START = 1_830_297_600_000  # 2028-01-01T00:00:00Z
KINDS = ("deliveries", "outcomes")
every_format = pytest.mark.parametrize("format", list(FORMATS))


def rows_of(spark: SparkSession, kind: str, first: int, count: int = 10, topics: int = 3, days: int = 1) -> DataFrame:
    """`count` rows, known by their offsets, which begin with `first`; days and topics change from row to row."""
    ms = F.lit(START) + F.pmod("id", F.lit(days)) * DAY_MS + F.col("id")
    topic = F.concat(F.lit("topic-"), F.pmod("id", F.lit(topics)))
    told: dict[str, Any] = {
        "id": F.md5(F.col("id").cast("string")), "offset": F.col("id"), "topic": topic, "outcome": topic,
        "delivered_ms": ms, "at_ms": ms, "date": F.date_from_unix_date((ms / DAY_MS).cast("int")),
        "key": F.col("id").cast("string").cast("binary"), "messages": F.lit(1),
    }  # fmt: skip
    fields = [field.split() for field in base.SCHEMAS[kind].split(", ")]
    return spark.range(first, first + count, 1, 2).select(
        *(told.get(name, F.lit(None)).cast(type_).alias(name) for name, type_ in fields)
    )


def offsets(table: HistoryTable, kind: str = "deliveries") -> list[int]:
    return sorted(row.offset for row in table.read(kind).select("offset").collect())


def data_files(folder: Path, kind: str) -> list[Path]:
    return [file for file in (folder / kind).rglob("*.parquet") if "_delta_log" not in file.parts]


def begun(spark: SparkSession, folder: Path, format: str, fault: Callable[[str], None] = no_failpoint) -> HistoryTable:
    """As a job begins. Spark's checkpoint is stood for by the file that it makes first."""
    table = HistoryTable(spark, str(folder), fault, format=format)
    table.begin()
    (folder / "_checkpoint").mkdir(exist_ok=True)
    (folder / "_checkpoint" / "metadata").touch()
    return table


@every_format
def test_a_batch_is_added_once_and_says_what_it_was_given(spark: SparkSession, tmp_path: Path, format: str) -> None:
    table = begun(spark, tmp_path / "t", format)
    assert table.format == format and table.read("outcomes").collect() == [] and not table.has("outcomes", 0)
    given = {kind: rows_of(spark, kind, 100, days=2) for kind in KINDS}
    for kind in KINDS:
        table.add(kind, 0, given[kind])
        table.add(kind, 0, rows_of(spark, kind, 500))
        assert table.has(kind, 0) and not table.has(kind, 1)
    again = HistoryTable(spark, f"file://{tmp_path}/t/")
    assert again.format == format, "a table knows its format"
    for kind in KINDS:
        found = again.read(kind)
        assert found.schema.simpleString() == spark.createDataFrame([], base.SCHEMAS[kind]).schema.simpleString()
        assert sorted(map(str, found.collect())) == sorted(map(str, given[kind].collect()))
    of_day = again.read("deliveries").where(F.col("date") == F.lit(date(2028, 1, 2)))
    assert {row.offset % 2 for row in of_day.collect()} == {1}


@every_format
def test_a_thousand_topics_make_one_file_per_batch_and_day(spark: SparkSession, tmp_path: Path, format: str) -> None:
    table = begun(spark, tmp_path, format)
    for number in range(3):
        table.add("deliveries", number, rows_of(spark, "deliveries", number * 2_000, 2_000, topics=1_000))
    with override(spark, {"spark.sql.adaptive.enabled": "false"}):  # as some clusters have it
        table.add("deliveries", 3, rows_of(spark, "deliveries", 6_000, 2_000, topics=1_000))
    assert len(data_files(tmp_path, "deliveries")) == 4
    table.add("deliveries", 4, rows_of(spark, "deliveries", 8_000, 2_000, topics=1_000, days=3))
    assert len(data_files(tmp_path, "deliveries")) == 7
    for file in data_files(tmp_path, "deliveries"):
        topics = [row["topic"] for row in ds.dataset(file).to_table(columns=["topic"]).to_pylist()]
        assert topics == sorted(topics), "a reader of one topic passes over most of a file"


@every_format
def test_one_topic_that_has_all_rows_is_written_by_several_tasks(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    table = begun(spark, tmp_path, format)
    with override(spark, {"spark.sql.adaptive.advisoryPartitionSizeInBytes": "64k"}):
        table.add("deliveries", 0, rows_of(spark, "deliveries", 0, 20_000, topics=1))
    assert len(data_files(tmp_path, "deliveries")) > 1


@every_format
def test_a_crash_at_every_step_loses_and_repeats_nothing(spark: SparkSession, tmp_path: Path, format: str) -> None:
    """Each batch is tried until it is there, as after crashes; at each step that there is it crashes once."""
    crashed: Counter[str] = Counter()

    def fault(step: str) -> None:
        if not crashed[step]:
            crashed[step] += 1
            raise RuntimeError(step)

    def until_done(work: Callable[[HistoryTable], object]) -> None:
        while True:
            table = begun(spark, tmp_path, format, fault)
            try:
                work(table)
                return
            except RuntimeError as error:
                assert str(error) in crashed
                now = HistoryTable(spark, str(tmp_path))
                for kind in KINDS:
                    seen = offsets(now, kind)
                    assert len(seen) == len(set(seen)) and len(seen) % 10 == 0, f"{error}: a batch is there in part"

    for number in range(3):
        for kind in KINDS:
            rows = rows_of(spark, kind, 10 * number)
            until_done(lambda table, kind=kind, number=number, rows=rows: table.add(kind, number, rows))  # type: ignore[misc]
    for kind in KINDS:
        until_done(lambda table, kind=kind: table.compact(kind, 1 << 30))  # type: ignore[misc]
    steps = {"written", "committed"} | (set() if format == "parquet" else {"joined", "compacted"})
    assert set(crashed) == {f"{step} {kind}" for step in steps for kind in KINDS}
    table = begun(spark, tmp_path, format)
    for kind in KINDS:
        table.add(kind, 2, rows_of(spark, kind, 700))
        assert offsets(table, kind) == list(range(30))


@every_format
def test_small_files_are_joined_and_batches_stay_known(spark: SparkSession, tmp_path: Path, format: str) -> None:
    table = begun(spark, tmp_path, format)
    for number in range(6):
        table.add("deliveries", number, rows_of(spark, "deliveries", 10 * number))
    before, after = table.compact("deliveries", 1 << 30)
    assert (before, after) == (6, 1)
    other = begun(spark, tmp_path, format)
    assert offsets(other) == offsets(table) == list(range(60))
    assert other.compact("deliveries", 1 << 30) == (0, 0)
    assert other.has("deliveries", 5) and not other.has("deliveries", 6)
    other.add("deliveries", 5, rows_of(spark, "deliveries", 900))
    table.add("deliveries", 6, rows_of(spark, "deliveries", 60))
    assert offsets(other) == list(range(70))
    with pytest.raises(BadInput, match="no history"):
        HistoryTable(spark, str(tmp_path / "x"), format=format).compact("outcomes", 1)


@every_format
def test_joined_files_with_other_rows_replace_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    table = begun(spark, tmp_path, format)
    for number in range(3):
        table.add("deliveries", number, rows_of(spark, "deliveries", 10 * number))
    module = parquet if format == "parquet" else committed
    with monkeypatch.context() as patch:
        patch.setattr(module, "arranged", lambda kind, rows: base.arranged(kind, rows.where("offset <> 7")))
        with pytest.raises(JobFailed, match="deliveries: 30 rows are 29 in the joined files: nothing was replaced"):
            table.compact("deliveries", 1 << 30)
    assert offsets(HistoryTable(spark, str(tmp_path))) == list(range(30))
    assert table.compact("deliveries", 1 << 30) == (3, 1)
    assert offsets(table) == list(range(30))


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_the_log_of_a_table_is_asked_once_a_batch_and_snapshots_have_a_bound(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    log: Any = delta.DeltaLog if format == "delta" else iceberg.IcebergLog
    monkeypatch.setattr(iceberg, "_KEPT", 3)
    monkeypatch.setattr(iceberg, "_MORE", 2)
    table = begun(spark, tmp_path, format)
    table.add("deliveries", 0, rows_of(spark, "deliveries", 0))
    asked: list[object] = []
    last = log.last

    def counted(self: object) -> object:
        asked.append(self)
        return last(self)

    monkeypatch.setattr(log, "last", counted)
    for number in range(1, 12):
        assert not table.has("deliveries", number)
        table.add("deliveries", number, rows_of(spark, "deliveries", 10 * number))
    assert len(asked) == 11
    assert offsets(table) == list(range(120))
    if format == "iceberg":
        snapshots = orjson.loads(newest_metadata(tmp_path / "deliveries").read_bytes())["snapshots"]
        assert 3 <= len(snapshots) <= 5, "not one for each batch"
        assert begun(spark, tmp_path, format).has("deliveries", 11)


def newest_metadata(table: Path) -> Path:
    return max(table.glob("metadata/v*.metadata.json"), key=lambda file: int(file.name.split(".")[0][1:]))


@every_format
def test_a_table_without_its_checkpoint_or_of_another_format_is_refused(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    table = begun(spark, tmp_path, format)
    (tmp_path / "_checkpoint" / "metadata").unlink()
    table.begin()  # without batches there is nothing to lose
    table.add("outcomes", 3, rows_of(spark, "outcomes", 0))
    with pytest.raises(JobFailed, match="the offsets to continue from are unknown"):
        HistoryTable(spark, str(tmp_path)).begin()
    other = next(name for name in FORMATS if name != format)
    with pytest.raises(BadInput, match=f"is a table in the format {format}, not {other}"):
        HistoryTable(spark, str(tmp_path), format=other)
    with pytest.raises(BadInput, match="orc is not one of parquet, delta, iceberg"):
        HistoryTable(spark, str(tmp_path), format="orc")
    with pytest.raises(BadInput, match="there is no history"):
        HistoryTable(spark, str(tmp_path / "x")).read("outcomes")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_package_that_spark_does_not_have_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setattr(f"duemq.pipeline.history.formats.{format}._CLASS", "not.there")
    with pytest.raises(BadInput, match=r"--conf spark\.jars\.packages=\S+:\S+:\d.* DUEMQ_SPARK_JARS"):
        HistoryTable(spark, str(tmp_path), format=format)
    assert not list(tmp_path.iterdir())


def test_merged_parquet_is_read_right_by_the_sql_of_the_page(spark: SparkSession, tmp_path: Path) -> None:
    """At the worst moment: the merged folder is there, and so are its sources."""

    def fault(step: str) -> None:
        if step == "committed deliveries":
            raise RuntimeError("killed")

    table = begun(spark, tmp_path / "history", "parquet")
    for number in range(4):
        table.add("deliveries", number, rows_of(spark, "deliveries", 10 * number, days=2))
    with pytest.raises(RuntimeError, match="killed"):
        HistoryTable(spark, str(tmp_path / "history"), fault).compact("deliveries", 1 << 30)
    files = sorted((tmp_path / "history").glob("deliveries/*/*/*.parquet"))
    assert ds.dataset(files).count_rows() == 80, "a pattern finds each row twice"

    sql = (
        (Path(__file__).parents[3] / "docs/guides/pipeline/history.md")
        .read_text()
        .partition("```sql\n")[2]
        .partition("```")[0]
    )
    connection = duckdb.connect()
    *before, last = sql.replace("'history/", f"'{tmp_path}/history/").strip().rstrip(";").split(";")
    connection.execute(";".join(before))
    wanted = Counter(row.topic for row in table.read("deliveries").collect())
    assert dict(connection.execute(last).fetchall()) == wanted and wanted.total() == 40
    days = connection.execute(
        "SELECT count(DISTINCT date) FROM read_parquet(getvariable('files'), hive_partitioning = true)"
    )
    assert days.fetchone() == (2,)


@every_format
def test_a_table_on_another_file_system(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.chdir(tmp_path)
    uri = other_file_system(spark, tmp_path / "disk") + "/a history"
    for number in range(2):
        table = HistoryTable(spark, uri, format=format)
        if not number:
            table.begin()
        table.add("deliveries", number, rows_of(spark, "deliveries", 10 * number))
        assert offsets(table) == list(range(10 * number + 10))
    assert table.compact("deliveries", 1 << 30) == (2, 1)
    assert offsets(table) == list(range(20))
    assert data_files(tmp_path / "disk" / "a history", "deliveries") and not (tmp_path / "viewfs:").exists()


def test_parquet_is_refused_where_folders_are_not_renamed_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_ATOMIC", ("hdfs",))
    with pytest.raises(BadInput, match="use --format delta or iceberg there"):
        HistoryTable(spark, str(tmp_path / "t")).begin()
    assert not (tmp_path / "t").exists()
    with pytest.raises(BadInput, match="s3a://bucket/x"):
        HistoryTable(spark, "s3a://bucket/x")
