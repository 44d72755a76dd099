"""The session of the pipeline: its Kafka connector works, progress is told, and what is missing is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from duemq.dev.kafka.kafka import KafkaServers
from duemq.pipeline.errors import SparkUnavailable
from duemq.pipeline.spark.connector import JARS_VARIABLE, fetch, from_folder, is_configured
from duemq.pipeline.spark.progress import step
from duemq.pipeline.spark.session import check_java, session
from tests.support.consumer.consumer_site import new_topic, send
from tests.support.spark.spark_site import SETTINGS, RecordingTeller, spark_tests

pytestmark = spark_tests


@pytest.mark.anyio
async def test_a_topic_is_read_with_headers(spark: SparkSession, kafka: KafkaServers) -> None:
    topic = await new_topic(kafka.bootstrap)
    await send(kafka.bootstrap, topic, [b"1", b"2"], headers=[("duemq-id", b"x"), ("duemq-id", b"y")])
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic, "startingOffsets": "earliest",
        "includeHeaders": "true", "kafka.isolation.level": "read_committed",
    }  # fmt: skip
    rows = spark.read.format("kafka").options(**options).load().select("value", "headers").collect()
    assert [bytes(row.value) for row in rows] == [b"1", b"2"]
    assert [bytes(header.value) for header in rows[0].headers] == [b"x", b"y"]


def test_progress_is_told(spark: SparkSession) -> None:
    told = RecordingTeller()
    slow = spark.range(0, 8, 1, 8).select(F.expr("reflect('java.lang.Thread', 'sleep', 150L)"))
    with step(spark, told, "sleeping"):
        slow.collect()
    assert told.steps == ["sleeping"]
    assert told.shares and told.shares == sorted(told.shares) and told.shares[-1][1] == 8


def test_the_connector_is_that_of_a_folder_or_what_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(JARS_VARIABLE, raising=False)
    assert from_folder({"spark.jars": "mine.jar"}) == {} and not is_configured({"spark.jars.packages": "a:b:1"})
    assert is_configured({"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0"})
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    with pytest.raises(SparkUnavailable, match="has no Kafka connector"):
        from_folder({})
    jar = tmp_path / "spark-sql-kafka-0-10_2.13-4.2.0.jar"
    jar.touch()
    found = from_folder({"spark.jars": "mine.jar"})
    assert found == {"spark.jars": f"mine.jar,{jar}"} and is_configured(found)


def test_a_connector_that_cannot_be_fetched_is_told(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.pipeline.spark.connector.PACKAGES", ("no-coordinate",))
    with pytest.raises(SparkUnavailable, match=f"no-coordinate.*{JARS_VARIABLE}"):
        fetch(spark)


@pytest.mark.parametrize("there", [True, False])
def test_a_connector_on_the_class_path_of_a_platform_is_not_fetched_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    fetched: list[SparkSession] = []
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr("duemq.pipeline.spark.session.is_configured", lambda _: False)
    monkeypatch.setattr("duemq.pipeline.spark.session.fetch", fetched.append)
    if not there:
        monkeypatch.setattr("duemq.pipeline.spark.session.has_connector", lambda _: False)
    found = session("tests", kafka=True, master="local[2]", settings=SETTINGS)
    assert found.sparkContext is spark.sparkContext and bool(fetched) != there


def test_a_missing_or_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkUnavailable, match="none on PATH or in JAVA_HOME"):
        check_java()
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/bin")
    with pytest.raises(SparkUnavailable, match=r"is Java 11$"):
        check_java()
