"""Reads deliveries: each task reads ranges of offsets in topics, page by page (ADR 83)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from duemq.bus.topic_cursor import encode_cursor
from duemq.client import Admin
from duemq.client.http.errors import Unavailable, UnknownTopic
from duemq.client.http.values import Record
from duemq.pipeline.errors import JobFailed
from duemq.pipeline.logs.server import patiently
from duemq.pipeline.spark_source.fields import key_of
from duemq.pipeline.spark_source.options import DeliveryReading, Offsets, Spans

_TASK_RECORDS: Final = 50_000
_HEADER = T.StructType([T.StructField("name", T.StringType()), T.StructField("value", T.BinaryType())])


def _number(name: str, digits: int) -> Callable[[Record], int | None]:
    """A function that returns the number in a header, or None: other programs may write anything to the topic."""

    def number(record: Record) -> int | None:
        text = record.headers.get(name) or ""
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= digits else None

    return number


_COLUMNS: Final[dict[str, tuple[T.DataType, Callable[[Record], Any]]]] = {
    "id": (T.StringType(), lambda record: record.id),
    "key": (T.BinaryType(), key_of),
    "payload": (T.BinaryType(), lambda record: record.value),
    "headers": (
        T.ArrayType(_HEADER), lambda record: [{"name": name, "value": value} for name, value in record.header_list]
    ),
    "due_ms": (T.LongType(), _number("duemq-due", 18)),
    "delivered_ms": (T.LongType(), lambda record: record.timestamp_ms),
    "attempt": (T.IntegerType(), _number("duemq-attempt", 9)),
    "topic": (T.StringType(), lambda record: record.topic),
    "partition": (T.IntegerType(), lambda record: record.partition),
    "offset": (T.LongType(), lambda record: record.offset),
}  # fmt: skip
SCHEMA: Final = T.StructType([T.StructField(name, kind) for name, (kind, _) in _COLUMNS.items()])


@dataclass
class OffsetRanges(InputPartition):
    """The part of a topic that a task reads: partition, first offset and end of each range."""

    topic: str
    ranges: list[tuple[int, int, int]]


class Deliveries:
    """The records in topics, with the columns in `schema`.

    Raises JobFailed for deleted records, and the client's errors after `reading.patience_s` seconds without an answer.
    """

    def __init__(self, reading: DeliveryReading, schema: T.StructType) -> None:
        self.reading, self._schema = reading, schema

    def spans(self, since: Offsets) -> dict[str, Spans]:
        """The present spans of each topic. `since`: the first offsets that have not been read yet."""
        with self.reading.server.client() as client:
            return {topic: self._spans(client, topic, since.get(topic, {})) for topic in self.reading.topics}

    def tasks(self, start: Offsets, end: Offsets) -> list[OffsetRanges]:
        """The tasks for the offsets from `start` to `end`. A partition that is not in `start` is not read."""
        tasks: list[OffsetRanges] = []
        for topic, partitions in end.items():
            room = 0
            for partition, last in partitions.items():
                first = start.get(topic, {}).get(partition, last)
                while first < last:
                    if not room:
                        room = _TASK_RECORDS
                        tasks.append(OffsetRanges(topic, []))
                    part = min(room, last - first)
                    tasks[-1].ranges.append((partition, first, first + part))
                    first, room = first + part, room - part
        return tasks

    def read(self, task: OffsetRanges) -> Iterator[pa.RecordBatch]:
        """The records of a task, as a batch for each page."""
        topic, schema = task.topic, to_arrow_schema(self._schema)
        columns = [_COLUMNS[field.name][1] for field in self._schema]
        firsts = {partition: first for partition, first, _ in task.ranges}
        left = {partition: last for partition, _, last in task.ranges}
        with self.reading.server.client() as client:
            spans = self._spans(client, topic, firsts, left)
            # In the cursor, other partitions and finished ones are at their ends, where few records arrive.
            at = {partition: end for partition, (_, end) in enumerate(spans)} | firsts
            while left and (page := self._page(client, topic, at, left)):
                records = [record for record in page if record.offset < left.get(record.partition, 0)]
                arrays = [
                    pa.array([of(record) for record in records], field.type)
                    for of, field in zip(columns, schema, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                at |= {record.partition: record.offset + 1 for record in page}
                for partition in [one for one, last in left.items() if at[one] >= last]:
                    del left[partition]
                    at[partition] = max(at[partition], spans[partition][1])
            self._spans(client, topic, firsts)

    def _page(self, client: Admin, topic: str, at: Mapping[int, int], left: Mapping[int, int]) -> Sequence[Record]:
        """The next page. It is empty if the rest of the ranges has only transaction marks, but also if it comes from a
        new leader that does not know the end of its log yet."""
        cursor = encode_cursor(topic, [at.get(partition, 0) for partition in range(max(at) + 1)])
        most = min(self.reading.page, sum(last - at[partition] for partition, last in left.items()))

        def ask() -> Sequence[Record]:
            return client.records(topic, after=cursor, max=most).records

        page = patiently(ask, self.reading.patience_s)
        if not page:
            self._spans(client, topic, {}, left)
            page = patiently(ask, self.reading.patience_s)
        return page

    def _spans(
        self, client: Admin, topic: str, since: Mapping[int, int], until: Mapping[int, int] | None = None
    ) -> Spans:
        """The spans of a topic. `since`: offsets that must not be deleted; `until`: ends that the partitions must have
        reached."""

        def ask() -> Spans:
            try:
                raw = client.topic(topic).raw
            except UnknownTopic:
                raw = {"trouble": None, "start_offsets": (), "end_offsets": ()}
            spans = list(zip(raw["start_offsets"], raw["end_offsets"], strict=True))
            if not spans and raw["trouble"]:
                raise Unavailable(f"topic {topic} cannot be read now: {raw['trouble']}")
            for partition, offset in (since if until is None else until).items():
                if partition >= len(spans) or spans[partition][1] < offset:
                    raise Unavailable(
                        f"partition {partition} of topic {topic} ends before offset {offset}, which it had: if the "
                        "topic was recreated, begin with a new checkpoint"
                    )
            return spans

        spans = patiently(ask, self.reading.patience_s)
        for partition, offset in since.items():
            if offset < (start := spans[partition][0]):
                raise JobFailed(
                    f"records {offset} to {start - 1} of partition {partition} of topic {topic} were deleted before "
                    "they were read. To go on without them, begin with a new checkpoint and set startingOffsets"
                )
        return spans


class DeliveryTable(DataSourceReader):
    """All records up to the present ends of the topics."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries

    def partitions(self) -> Sequence[OffsetRanges]:
        spans = self._deliveries.spans({})
        end = {topic: {at: end for at, (_, end) in enumerate(of)} for topic, of in spans.items()}
        return self._deliveries.tasks(self._deliveries.reading.first(spans), end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OffsetRanges)
        return self._deliveries.read(partition)
