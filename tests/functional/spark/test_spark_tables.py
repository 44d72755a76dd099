"""Tables that commands are given by name: files, the catalog, a database behind JDBC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from duemq.pipeline.errors import BadInput
from duemq.pipeline.sources.tables import fingerprint, jdbc_table, read_table
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests
ROWS = [("0012", 'a, "b"'), ("7", "c")]


@pytest.mark.parametrize("kind", ["parquet", "orc", "json", "csv"])
def test_the_format_of_files_is_told_by_their_names(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    folder = str(tmp_path / "table")
    spark.createDataFrame(ROWS, "id string, text string").write.format(kind).options(header="true", escape='"').save(
        folder
    )
    found = read_table(spark, folder)
    assert sorted(map(tuple, found.select("id", "text").collect())) == sorted(ROWS)
    (file, *_) = Path(folder).glob(f"*.{kind}")
    assert read_table(spark, str(file)).columns == ["id", "text"]
    before = fingerprint(found)
    assert before is not None and fingerprint(read_table(spark, folder)) == before
    file.touch()
    assert fingerprint(read_table(spark, folder)) != before


def test_what_cannot_be_read_is_told(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "mixed").mkdir()
    for name in ("a.csv", "b.json"):
        (tmp_path / "mixed" / name).touch()
    with pytest.raises(BadInput, match="cannot be told by their names: say --format"):
        read_table(spark, str(tmp_path / "mixed"))
    with pytest.raises(BadInput, match="cannot be read"):
        read_table(spark, str(tmp_path / "none.parquet"))
    with pytest.raises(BadInput, match="no_such_table cannot be read"):
        read_table(spark, "no_such_table")
    with pytest.raises(BadInput, match="excel is not a format of files here"):
        read_table(spark, str(tmp_path), "excel")


def test_a_table_of_the_catalog(spark: SparkSession) -> None:
    spark.createDataFrame(ROWS, "id string, text string").createOrReplaceTempView("reminders")
    try:
        found = read_table(spark, "reminders")
        assert sorted(map(tuple, found.collect())) == sorted(ROWS)
        assert fingerprint(found) is None, "it has no files"
    finally:
        spark.catalog.dropTempView("reminders")


def test_a_table_of_a_database(spark: SparkSession, tmp_path: Path) -> None:
    """Apache Derby, which comes with Spark."""
    java: Any = spark.sparkContext._jvm
    java.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    url = f"jdbc:derby:{tmp_path}/base;create=true"
    options = {"driver": "org.apache.derby.jdbc.EmbeddedDriver"}
    rows = spark.createDataFrame(ROWS, "id string, text string")
    rows.write.format("jdbc").options(url=url, dbtable="reminders", **options).save()
    found = jdbc_table(spark, url, "reminders", options)
    assert sorted((row["id"], row["text"]) for row in found.collect()) == sorted(ROWS)
    chosen = jdbc_table(spark, url, '(select * from reminders where "text" is null) chosen', options)
    assert chosen.count() == 0 and fingerprint(chosen) is None
    with pytest.raises(BadInput, match="nothing cannot be read"):
        jdbc_table(spark, url, "nothing", options)
    with pytest.raises(BadInput, match="reminders cannot be read: No suitable driver"):
        jdbc_table(spark, "jdbc:unknown://db/shop", "reminders")
