"""Records of duemq's topics as Spark's Kafka source returns them, made by the product's own writers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from duemq.bus.kafka.record_batches import to_kafka

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = tuple[Any, ...]


def record(topic: str, partition: int, offset: int, at: int, frame: bytes, by_broker: bool = True) -> Row:
    """The record of a frame; `at` in epoch ms."""
    key, value, headers = to_kafka(frame)
    return key, value, topic, partition, offset, _EPOCH + timedelta(milliseconds=at), int(by_broker), headers or None


def kafka_frame(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    return spark.createDataFrame(list(rows), SCHEMA)


def frame_of(spark: SparkSession, schema: str, rows: Iterable[dict[str, Any]]) -> DataFrame:
    """Rows with some of the columns of a schema; null in the others."""
    names = [one.name for one in spark.createDataFrame([], schema).schema]
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], schema)
