"""Places that Spark cannot work with are refused in a sentence, before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duemq.pipeline.bulk_schedule.job import Options, schedule
from duemq.pipeline.bulk_schedule.manifest import JobFolder
from duemq.pipeline.bulk_schedule.rules import BulkRules
from duemq.pipeline.bulk_schedule.stage import stage_of
from duemq.pipeline.columns import Columns
from duemq.pipeline.errors import BadInput
from duemq.pipeline.files.uris import destination, uri_of
from duemq.pipeline.logs.server import Server
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests


def test_a_file_system_that_spark_does_not_know_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"^--ids gs://bucket/ids: Spark cannot reach it \(.*gs") as error:
        destination(spark, "gs://bucket/ids", "--ids")
    assert "\n" not in str(error.value)
    with pytest.raises(BadInput, match=r"^--out hdfs://nobody\.invalid/x: Spark cannot reach it"):
        destination(spark, "hdfs://nobody.invalid/x", "--out")


def test_a_folder_need_not_be_there_and_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("not there", "a [1]{2}*?", "there"):
        if name == "there":
            spark.range(3).write.parquet(uri_of(tmp_path / name))
        destination(spark, tmp_path / name, "--ids")


@pytest.mark.parametrize("place", ["hdfs:///jobs", "abfss://box@account.dfs.core.windows.net/jobs", "gs://bucket/jobs"])
def test_a_stage_that_no_node_takes_files_in_from_is_refused(spark: SparkSession, place: str) -> None:
    frame = spark.createDataFrame([], "due bigint, body string")
    columns = Columns("due", "body", to="orders")
    with pytest.raises(BadInput, match=f"^{place} cannot be a stage: nodes cannot import files from {place[:2]}"):
        schedule(frame, columns, "job", Options(place), Server("http://127.0.0.1:9"), rules=BulkRules(), source="x")


def test_a_stage_in_a_store_is_named_as_an_object_is(spark: SparkSession) -> None:
    stage = stage_of(spark, "s3a://bucket/jobs/", "job-1")
    assert stage.uri("a/b.parquet") == "s3a://bucket/jobs/job-1/a/b.parquet"
    assert stage.path("a/b.parquet") == "s3://bucket/jobs/job-1/a/b.parquet"
    for wrong in ("s3a:///jobs", "s3a://bucket/a/../b", "s3a://bucket//a"):
        with pytest.raises(BadInput, match="cannot be a stage"):
            stage_of(spark, wrong, "job-1")
    with pytest.raises(BadInput, match="a job's id has"):
        JobFolder(stage_of(spark, "s3a://bucket", "a/b"), "a/b")


def test_a_folder_where_no_file_can_be_made_exclusively_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="file cannot be used"):
        stage_of(spark, tmp_path / "file", "job").make()
