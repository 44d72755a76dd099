"""Deliveries by offsets, against a server of lists: each record once, whatever gaps, shares and ends there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from pyspark.sql import types as T
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from duemq.bus.base import TopicInfo
from duemq.bus.topic_cursor import decode_cursor, encode_cursor
from duemq.client import Unavailable
from duemq.client.http.errors import UnknownTopic
from duemq.client.http.values import Record, RecordPage, Topic
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.logs.server import Server
from duemq.pipeline.spark_source.deliveries import SCHEMA, Deliveries, DeliveryTable, OffsetRanges
from duemq.pipeline.spark_source.delivery_stream import DeliveryStream
from duemq.pipeline.spark_source.options import DeliveryReading, reading_deliveries

PLACE = T.StructType([field for field in SCHEMA if field.name in ("partition", "offset")])


@dataclass
class Log:
    """Topics, each with partitions of some offsets below an end; the next `hidden` pages show none of them."""

    topics: dict[str, list[tuple[list[int], int]]]
    start: int = 0
    hidden: int = 0
    asked: list[int] = field(default_factory=list)  # how many records a page should have

    @contextmanager
    def client(self) -> Iterator[Any]:
        yield self

    def info(self, topic: str) -> TopicInfo:
        partitions = self.topics[topic]
        ends = tuple(end for _, end in partitions)
        return TopicInfo(topic, len(ends), tuple(min(self.start, end) for end in ends), ends)

    def topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise UnknownTopic("unknown_topic", "there is no such topic")
        info = self.info(name)
        return Topic(name, {"trouble": None, "start_offsets": info.start_offsets, "end_offsets": info.end_offsets})

    def records(self, topic: str, *, after: str, max: int) -> RecordPage:
        at = decode_cursor(after, topic, self.info(topic), "after")
        self.asked.append(max)
        found: list[Record] = []
        self.hidden -= 1
        for partition, (offsets, end) in enumerate(self.topics[topic] if self.hidden < 0 else ()):
            # As the server does: each partition has a share, so that a page may have more than one asked for.
            some = [one for one in offsets if at[partition] <= one < end and one >= self.start]
            for one in some[: -(-max // len(self.topics[topic]))]:
                found.append(Record(topic, partition, one, 7, None, b"", {}))
                at[partition] = one + 1
        return RecordPage(found, encode_cursor(topic, at))


def deliveries(log: Log, page: int = 10, patience_s: float = 0, **reading: Any) -> Deliveries:
    topics = tuple(reading.pop("topics", log.topics))
    found = DeliveryReading(cast(Server, log), topics, {}, -2, page=page, patience_s=patience_s, **reading)
    return Deliveries(found, PLACE)


def read(of: Deliveries, tasks: list[OffsetRanges]) -> list[tuple[str, int, int]]:
    return [
        (task.topic, row["partition"], row["offset"])
        for task in tasks
        for batch in of.read(task)
        for row in batch.to_pylist()
    ]


def run(
    stream: DeliveryStream, of: Deliveries, start: Any, limit: Any = None
) -> tuple[Any, list[tuple[str, int, int]]]:
    """One batch, from offsets as the checkpoint has them to its end."""
    end = as_json(stream.latestOffset(start, limit or stream.getDefaultReadLimit()))
    return end, read(of, list(stream.partitions(start, end)))


def as_json(offsets: Mapping[str, Mapping[Any, int]]) -> dict[str, dict[str, int]]:
    return {topic: {str(partition): at for partition, at in of.items()} for topic, of in offsets.items()}


def whole(*counts: int) -> list[tuple[list[int], int]]:
    return [(list(range(count)), count) for count in counts]


def test_a_table_has_each_record_once_however_it_is_cut_into_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.pipeline.spark_source.deliveries._TASK_RECORDS", 20)
    of = deliveries(Log({"a": whole(50, 0, 7, 33), "b": whole(1)}))
    tasks = list(DeliveryTable(of).partitions())
    assert all(sum(last - first for _, first, last in task.ranges) <= 20 for task in tasks) and len(tasks) == 6
    found = read(of, tasks)
    assert len(found) == len(set(found)) == 91
    assert {one for one in found if one[0] == "b"} == {("b", 0, 0)}
    empty = deliveries(Log({}), topics=("none",))
    assert read(empty, list(DeliveryTable(empty).partitions())) == []


def test_the_marks_of_transactions_end_a_range_and_other_partitions_are_not_read() -> None:
    gaps = [(list(range(0, 40, 2)), 41), (list(range(1_000)), 1_000)]
    log = Log({"a": gaps})
    of = deliveries(log)
    assert read(of, [OffsetRanges("a", [(0, 0, 41)])]) == [("a", 0, at) for at in range(0, 40, 2)]
    assert len(log.asked) < 10  # a server that gave the other partition, too, would have been asked more often


def test_an_empty_page_of_a_new_leader_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log({"a": whole(30)}, hidden=1)
    assert len(read(deliveries(log), [OffsetRanges("a", [(0, 0, 30)])])) == 30


def test_records_that_are_deleted_before_they_are_read_are_told() -> None:
    of = deliveries(Log({"a": whole(30)}, start=10))
    with pytest.raises(JobFailed, match="records 4 to 9 of partition 0 of topic a were deleted before they were read"):
        read(of, [OffsetRanges("a", [(0, 4, 30)])])
    with pytest.raises(JobFailed, match="records 0 to 9 of partition 0"):
        DeliveryStream(of).latestOffset({"a": {"0": 0}}, ReadAllAvailable())
    with pytest.raises(Unavailable, match="ends before offset 31, which it had"):
        DeliveryStream(of).latestOffset({"a": {"0": 31}}, ReadAllAvailable())


def test_deleted_while_they_are_read() -> None:
    log = Log({"a": whole(30)})
    batches = deliveries(log).read(OffsetRanges("a", [(0, 0, 30)]))
    assert next(batches).num_rows == 10
    log.start = 25
    with pytest.raises(JobFailed, match="records 0 to 24 of partition 0 of topic a"):
        list(batches)


def test_a_batch_has_the_next_records_and_each_partition_its_share() -> None:
    of = deliveries(Log({"a": whole(100, 5), "b": whole(60)}), most=50)
    stream = DeliveryStream(of)
    start = as_json(stream.initialOffset())
    assert start == {"a": {"0": 0, "1": 0}, "b": {"0": 0}}
    end, found = run(stream, of, start)
    assert end == {"a": {"0": 22, "1": 5}, "b": {"0": 23}} and len(found) == 50
    seen, ended = set(found), end
    while (after := run(stream, of, ended))[0] != ended:
        ended, more = after
        assert len(more) <= 50 and not seen & set(more)
        seen |= set(more)
    assert len(seen) == 165 and stream.reportLatestOffset() == {"a": {0: 100, 1: 5}, "b": {0: 60}}
    assert run(stream, of, end)[1] == run(stream, of, end)[1] != []  # a batch that is repeated has the same records
    assert len(run(stream, of, start, ReadAllAvailable())[1]) == 165


def test_topics_and_partitions_that_come_later_are_read_from_their_first_record() -> None:
    log = Log({"a": whole(3)})
    of = deliveries(log, topics=("a", "new"))
    stream = DeliveryStream(of)
    end, found = run(stream, of, as_json(stream.initialOffset()))
    assert len(found) == 3
    log.topics |= {"a": whole(3, 4), "new": whole(2)}
    for expected in (0, 6, 0):
        end, found = run(stream, of, end)
        assert len(found) == expected
    fewer = deliveries(log, topics=("new",))
    assert run(DeliveryStream(fewer), fewer, end)[0] == end  # the other topic is gone on with if it is named again


def test_a_query_of_what_is_available_ends_where_it_began_to_look() -> None:
    log = Log({"a": whole(30)})
    of = deliveries(log, most=20)
    stream = DeliveryStream(of)
    stream.prepareForTriggerAvailableNow()
    start = as_json(stream.initialOffset())
    log.topics["a"] = whole(90, 4)
    counts = []
    for _ in range(4):
        start, found = run(stream, of, start)
        counts.append(len(found))
    assert counts == [20, 10, 0, 0] and start == {"a": {"0": 30, "1": 0}}


def test_a_stream_without_news_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("duemq.pipeline.spark_source.delivery_stream.time.sleep", slept.append)
    log = Log({"a": whole(3)})
    stream = DeliveryStream(deliveries(log))
    for _ in range(6):
        stream.latestOffset({"a": {"0": 3}}, ReadMaxRows(5))
    log.topics["a"] = whole(4)
    stream.latestOffset({"a": {"0": 3}}, ReadMaxRows(5))
    assert slept == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0]


def test_where_a_query_begins() -> None:
    spans = {"a": [(2, 9), (0, 4)], "b": []}

    def first(**options: str) -> Any:
        return reading_deliveries({"url": "http://x", "what": "deliveries", "topic": "a, b,a", **options}).first(spans)

    assert first() == {"a": {0: 2, 1: 0}, "b": {}}
    assert first(startingOffsets="latest") == {"a": {0: 9, 1: 4}, "b": {}}
    assert first(startingoffsets='{"a": {"0": 3}}') == {"a": {0: 3, 1: 0}, "b": {}}
    assert first(startingoffsets='{"a": {"0": -1, "1": -2}}') == {"a": {0: 9, 1: 0}, "b": {}}
    for wrong, sentence in (
        ('{"a": {"0": 10}}', "partition 0 of topic a has offsets 2 to 9, not 10"),
        ('{"a": {"2": 1}}', "topic a has no partition 2"),
        ('{"c": {"0": 1}}', "must be as"), ('{"a": {"0": true}}', "must be as"), ('{"a": 1}', "must be as"),
        ('{"a"', "must be as"), ("now", "'now' is not one of earliest, latest, or JSON"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=f"option startingOffsets: .*{sentence}"):
            first(startingOffsets=wrong)
    for options, sentence in (
        ({"what": "pending"}, "option what: a stream reads deliveries"), ({}, "option what: a stream reads"),
        ({"what": "deliveries"}, "option topic: is missing"),
        ({"what": "deliveries", "topic": "a", "maxrecordsperbatch": "0"}, "option maxRecordsPerBatch: must be"),
        ({"what": "deliveries", "topic": "a", "since": "1"}, "option since: is not known here"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=sentence):
            reading_deliveries(options, stream=True)
    assert reading_deliveries({"what": "deliveries", "topic": "a"}, stream=True).otherwise == -1


def test_columns_of_a_record() -> None:
    raw = {"key_base64": "/w==", "header_list": []}
    headers = {"duemq-id": "AAA", "duemq-due": "17", "duemq-attempt": "x"}
    record = Record("a", 3, 4, 5, None, b"", headers, is_null=True, raw=raw)

    class Single(Log):
        def records(self, topic: str, *, after: str, max: int) -> RecordPage:
            return RecordPage([record], after)

    log = Single({"a": whole(0, 0, 0, 5)})
    found = Deliveries(DeliveryReading(cast(Server, log), ("a",), {}, -2), SCHEMA)
    (row,) = next(found.read(OffsetRanges("a", [(3, 4, 5)]))).to_pylist()
    assert row == {
        "id": "AAA", "key": b"\xff", "payload": None, "headers": row["headers"], "due_ms": 17, "delivered_ms": 5,
        "attempt": None, "topic": "a", "partition": 3, "offset": 4,
    }  # fmt: skip
