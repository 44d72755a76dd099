"""Reads messages: a task for each shard, range of due times and status, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import types as T
from pyspark.sql.datasource import DataSourceReader, InputPartition

from duemq.client.http.requests import Filter
from duemq.client.http.values import MessageState
from duemq.pipeline.logs.server import patiently
from duemq.pipeline.spark_source.fields import key_of
from duemq.pipeline.spark_source.options import ReadOptions

_TEXT, _MS = T.StringType(), T.LongType()
# The schema is not written as DDL, because Spark's planning process has no session to parse it.
SCHEMA: Final = T.StructType([
    T.StructField(name, kind)
    for name, kind in (
        ("id", _TEXT), ("shard", T.IntegerType()), ("status", _TEXT), ("topic", _TEXT), ("key", T.BinaryType()),
        ("due_ms", _MS), ("labels", T.ArrayType(_TEXT)), ("headers", T.MapType(_TEXT, _TEXT)),
        ("attempt", T.IntegerType()), ("expires_ms", _MS), ("delivered_ms", _MS), ("cancelled_ms", _MS),
        ("dead_ms", _MS), ("reason", _TEXT),
    )
])  # fmt: skip


@dataclass
class ShardRange(InputPartition):
    """The part that a task reads."""

    shard: int
    status: str
    since: int | None
    until: int | None


class Lister(DataSourceReader):
    """Reads messages through the list API. `columns`: positions in `SCHEMA`.

    The result is not a snapshot: a message that moves or ends during the read is seen before or after the change, or in
    neither range. No filter is pushed down (`pushFilters` of Spark 4.3 gives wrong results): use the options.
    """

    def __init__(self, reading: ReadOptions, columns: Sequence[int]) -> None:
        self._reading, self._columns = reading, columns

    def partitions(self) -> Sequence[ShardRange]:
        reading = self._reading
        with reading.server.client() as client:
            shards = patiently(lambda: len(client.cluster().shards), reading.patience_s)
        return [
            ShardRange(shard, status, since, until)
            for since, until in reading.ranges()
            for status in reading.statuses
            for shard in range(shards)
        ]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, ShardRange)
        reading = self._reading
        cursor: str | None = None
        with reading.server.client() as client:
            while True:
                at, query = cursor, _filter(reading, partition)
                page = patiently(
                    lambda at=at, query=query: client.page(at, page_size=reading.page, **query),  # type: ignore[misc]
                    reading.patience_s,
                )
                for row in (_row(partition.shard, state) for state in page.messages):
                    yield tuple(row[at] for at in self._columns)
                if (cursor := page.cursor) is None:
                    return


def _filter(reading: ReadOptions, part: ShardRange) -> Filter:
    values = {
        "topic": reading.topic, "key": reading.key, "label": reading.label, "status": part.status,
        "due_from": part.since, "due_to": part.until, "shard": part.shard,
    }  # fmt: skip
    pairs: Any = {name: value for name, value in values.items() if value is not None}
    filters: Filter = pairs
    return filters


def _row(shard: int, state: MessageState) -> tuple[Any, ...]:
    return (
        state.id, shard, state.status, state.topic, key_of(state), state.deliver_at_ms, list(state.labels),
        dict(state.headers), state.attempt, state.expires_at_ms, state.delivered_at_ms, state.cancelled_at_ms,
        state.dead_at_ms, state.reason,
    )  # fmt: skip
