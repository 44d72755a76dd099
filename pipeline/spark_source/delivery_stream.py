"""Reads deliveries as a stream (ADR 83), through interfaces of Spark 4.2 and later."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from duemq.pipeline.logs.server import longer
from duemq.pipeline.spark_source.deliveries import Deliveries, OffsetRanges
from duemq.pipeline.spark_source.options import Offsets, Spans

JsonOffsets = Mapping[str, Mapping[str, int]]
"""Offsets as Spark stores them: in JSON, partition numbers are texts."""
_IDLE_S: Final = 0.5  # the longest pause of an idle stream: without it, Spark would poll a hundred times a second


class DeliveryStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream in batches of up to `most` records. The partitions get equal shares; those with more records split
    what the others do not use.

    In its first batch, a new partition ends at its first record, so that its offset is in the checkpoint.
    """

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self._last: dict[str, Spans] | None = None  # the ends at which a query of the available records stops
        self._ends: Offsets | None = None
        self._pause_s = 0.0

    def initialOffset(self) -> Offsets:
        return self._deliveries.reading.first(self._deliveries.spans({}))

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._deliveries.spans({})

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._deliveries.reading.most)

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> Offsets:
        since = _offsets(start)
        spans = self._deliveries.spans(since)
        self._ends = {topic: {at: end for at, (_, end) in enumerate(of)} for topic, of in spans.items()}
        offsets = since | {
            topic: {at: since.get(topic, {}).get(at, first) for at, (first, _) in enumerate(of)}
            for topic, of in spans.items()
        }
        last = spans if self._last is None else self._last
        waiting = sorted(
            (end - offsets[topic][at], topic, at)
            for topic, of in last.items()
            for at, (_, end) in enumerate(of)
            if at in since.get(topic, {}) and end > offsets[topic][at]
        )
        left = limit.max_rows if isinstance(limit, ReadMaxRows) else sum(count for count, _, _ in waiting)
        for place, (count, topic, at) in enumerate(waiting):
            share = min(count, -(-left // (len(waiting) - place)))
            offsets[topic][at] += share
            left -= share
        self._pause_s = min(longer(self._pause_s), _IDLE_S) if offsets == since and self._last is None else 0.0
        time.sleep(self._pause_s)
        return offsets

    def reportLatestOffset(self) -> Offsets | None:
        return self._ends

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> Sequence[OffsetRanges]:
        return self._deliveries.tasks(_offsets(start), _offsets(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OffsetRanges)
        return self._deliveries.read(partition)


def _offsets(read: JsonOffsets) -> Offsets:
    return {topic: {int(partition): offset for partition, offset in of.items()} for topic, of in read.items()}
