"""Deliveries as a table and as a stream, against a proxy with three shards: offsets, options and a repeated batch."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from duemq.client import Client, Draft
from tests.support.http.proxy_site import proxy_site
from tests.support.spark.spark_site import spark_tests

pytestmark = [*spark_tests, pytest.mark.slow]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with proxy_site(tmp_path_factory.mktemp("deliveries") / "data") as url:
        yield url


def deliver(url: str, topic: str, texts: range, **more: Any) -> None:
    with Client(url) as client:
        client.send_batch([Draft(topic, f"text {n}".encode(), key="k", **more) for n in texts])
        cursor, count = None, 0
        while count < texts.stop:  # all of the topic
            page = client.records(topic, after=cursor, wait=timedelta(seconds=10))
            cursor, count = page.cursor, count + len(page.records)


def started(spark: SparkSession, url: str, folder: Path, *, sink: str = "sink", **options: Any) -> StreamingQuery:
    """A query that writes all available records to Parquet."""
    stream = spark.readStream.format("duemq").options(url=url, what="deliveries", **options).load()
    return (
        stream.writeStream.format("parquet").option("path", f"file://{folder}/{sink}")
        .option("checkpointLocation", f"file://{folder}/checkpoint").trigger(availableNow=True).start()
    )  # fmt: skip


def ended(query: StreamingQuery) -> list[int]:
    """How many records each batch had."""
    assert query.awaitTermination(300)
    return [batch["numInputRows"] for batch in query.recentProgress if batch["numInputRows"]]


def payloads(spark: SparkSession, folder: Path) -> list[str]:
    return sorted(bytes(row.payload).decode() for row in spark.read.parquet(f"file://{folder}/sink").collect())


def test_deliveries_are_a_table(spark: SparkSession, url: str) -> None:
    deliver(url, "table", range(5), headers=[("h", b"\xff")], labels=["l"])
    frame = spark.read.format("duemq").options(url=url, what="deliveries", topic="table").load()
    rows = frame.orderBy("offset").collect()
    assert sorted(bytes(row.payload) for row in rows) == [b"text %d" % n for n in range(5)]
    assert [row.offset for row in rows] == [0, 1, 2, 3, 4]  # they have one key
    row = rows[0]
    assert (row.topic, bytes(row.key), row.attempt, len(row.id)) == ("table", b"k", 1, 32)
    assert 0 <= row.delivered_ms - row.due_ms < 60_000
    headers = {header.name: bytes(header.value) for header in row.headers}
    assert headers["h"] == b"\xff" and headers["duemq-labels"] == b"l"
    some = spark.read.schema("offset bigint").format("duemq").options(
        url=url, what="deliveries", topic="table,none", startingOffsets=json.dumps({"table": {str(row.partition): 3}})
    )  # fmt: skip
    assert sorted(row.offset for row in some.load().collect()) == [3, 4]
    wrong = spark.read.schema("offset int").format("duemq").options(url=url, what="deliveries", topic="table")
    with pytest.raises(AnalysisException, match="a schema has some of these columns"):
        wrong.load().collect()


def test_a_stream_goes_on_from_its_checkpoint_in_bounded_batches(spark: SparkSession, url: str, tmp_path: Path) -> None:
    deliver(url, "bounded", range(25))
    query = started(spark, url, tmp_path, topic="bounded", startingOffsets="earliest", maxRecordsPerBatch=10)
    assert ended(query) == [10, 10, 5]
    assert sorted(json.loads(query.recentProgress[-1]["sources"][0]["latestOffset"])["bounded"].values()) == [0, 25]
    deliver(url, "bounded", range(25, 32))
    query = started(spark, url, tmp_path, topic="bounded", startingOffsets="earliest", maxRecordsPerBatch=100)
    assert ended(query) == [7]
    # As if the query had ended in the middle of its last batch: it is repeated, and has the same records.
    for name in ("3", ".3.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    deliver(url, "bounded", range(32, 40))
    query = started(spark, url, tmp_path, topic="bounded", startingOffsets="earliest", maxRecordsPerBatch=100)
    assert ended(query)[-1:] == [8]
    assert payloads(spark, tmp_path) == sorted(f"text {n}" for n in range(40))


def test_a_stream_that_runs_has_what_is_delivered(spark: SparkSession, url: str, tmp_path: Path) -> None:
    options = {"url": url, "what": "deliveries", "topic": "later", "startingOffsets": "earliest"}
    query = (
        spark.readStream.format("duemq").options(**options).load()
        .writeStream.format("memory").queryName("later").option("checkpointLocation", f"file://{tmp_path}/c").start()
    )  # fmt: skip
    try:
        for count in (5, 9):  # the topic is made by the first ones
            deliver(url, "later", range(0 if count == 5 else 5, count))
            deadline = time.monotonic() + 60
            while spark.table("later").count() < count:
                assert time.monotonic() < deadline and query.isActive, query.exception()
                time.sleep(0.1)
    finally:
        query.stop()


def test_what_cannot_be_a_stream_is_said(spark: SparkSession, url: str, tmp_path: Path) -> None:
    with pytest.raises((AnalysisException, StreamingQueryException), match="a stream reads deliveries"):
        pending = spark.readStream.format("duemq").options(url=url, what="pending", topic="x").load()
        query = pending.writeStream.format("noop").option("checkpointLocation", f"file://{tmp_path}/x").start()
        query.awaitTermination(60)
    query = started(spark, url, tmp_path, topic="x", startingOffsets='{"x": {"0": 7}}')
    with pytest.raises(StreamingQueryException, match="option startingOffsets: topic x has no partition 0"):
        query.awaitTermination(60)
