"""Load, hot seconds and backlog of a few counts."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.testing import assertDataFrameEqual

from duemq.pipeline.forecast.load import backlog, hot_seconds, load_by_minute, load_by_topic, minutes, within
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests

MINUTE = 1_830_297_600_000  # 2028-01-01T00:00:00Z


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """Of two shards; the second one's clockwork is the same."""
    return spark.createDataFrame(
        [
            (0, "a", MINUTE, 5),
            (1, "a", MINUTE, 7),
            (0, "b", MINUTE + 59_000, 30),
            (0, "a", MINUTE + 59_000, 30),
            (1, "b", MINUTE + 60_000, 1),
        ],
        "shard int, topic string, second_ms bigint, messages bigint",
    )


def counts(spark: SparkSession, *seconds: tuple[int, int]) -> DataFrame:
    """(second, messages) from `MINUTE` on."""
    found = [("t", MINUTE + at * 1_000, messages) for at, messages in seconds]
    return spark.createDataFrame(found, "topic string, second_ms bigint, messages bigint")


def test_load_is_counted_by_minute_and_topic(rows: DataFrame) -> None:
    found = load_by_minute(rows)
    assertDataFrameEqual(found.drop("minute"), [
        Row(minute_ms=MINUTE, topic="a", messages=42), Row(minute_ms=MINUTE, topic="b", messages=30),
        Row(minute_ms=MINUTE + 60_000, topic="b", messages=1),
    ])  # fmt: skip
    assert {str(row.minute) for row in found.select(found.minute.cast("string").alias("minute")).collect()} == {
        "2028-01-01 00:00:00", "2028-01-01 00:01:00",
    }  # fmt: skip


def test_a_topics_fullest_second_is_of_all_shards_and_the_first_of_equals(rows: DataFrame, spark: SparkSession) -> None:
    assertDataFrameEqual(load_by_topic(rows), [
        Row(topic="a", messages=42, peak_ms=MINUTE + 59_000, peak=30),
        Row(topic="b", messages=31, peak_ms=MINUTE + 59_000, peak=30),
    ])  # fmt: skip
    (row,) = load_by_topic(counts(spark, (9, 3), (2, 3), (5, 1))).collect()
    assert row.peak_ms == MINUTE + 2_000


def test_hot_seconds_are_named_with_their_topics_largest_first(rows: DataFrame) -> None:
    first, second = hot_seconds(rows, 2).collect()
    assert (first.second_ms, first.messages) == (MINUTE + 59_000, 60)
    assert [tuple(one) for one in first.topics] == [("a", 30), ("b", 30)]
    assert (second.second_ms, second.messages, [tuple(one) for one in second.topics]) == (MINUTE, 12, [("a", 12)])


def test_what_is_overdue_is_due_at_the_start_and_what_is_beyond_the_end_is_not_counted(rows: DataFrame) -> None:
    found = within(rows.drop("shard"), MINUTE + 30_500, MINUTE + 60_000).groupBy("second_ms").sum("messages")
    assert sorted(map(tuple, found.collect())) == [(MINUTE + 30_000, 12), (MINUTE + 59_000, 60)]


def waiting(frame: DataFrame, capacity: float, from_ms: int = MINUTE) -> list[tuple[int, int, int]]:
    """(second, waiting, late ms)"""
    found = backlog(frame, capacity, from_ms).orderBy("second_ms").collect()
    return [((row.second_ms - MINUTE) // 1_000, row.waiting, row.late_ms) for row in found]


def test_a_backlog_is_carried_over_and_worked_off(spark: SparkSession) -> None:
    frame = counts(spark, (0, 25), (1, 12), (2, 3), (3, 4), (9, 11))
    assert waiting(frame, 10) == [(0, 15, 1_500), (1, 17, 1_700), (2, 10, 1_000), (3, 4, 400), (9, 1, 100)]


def test_the_queue_does_not_save_up_what_it_could_have_delivered(spark: SparkSession) -> None:
    """An idle hour before a hot second helps nothing, and neither does an idle one between two."""
    frame = counts(spark, (3_600, 30), (3_602, 20), (7_200, 15))
    assert waiting(frame, 10) == [(3_600, 20, 2_000), (3_602, 20, 2_000), (7_200, 5, 500)]


@pytest.mark.parametrize("capacity", [3, 7.5, 1_000])
def test_the_backlog_is_that_of_a_queue_followed_second_by_second(spark: SparkSession, capacity: float) -> None:
    seconds = [(at * at % 97, at * 7 % 23) for at in range(40)]
    due: dict[int, int] = {}
    for at, messages in seconds:
        due[at] = due.get(at, 0) + messages
    expected, queue = [], 0.0
    for at in range(97):
        queue = max(0.0, queue + due.get(at, 0) - capacity)
        if at in due:
            expected.append((at, queue))
    found = waiting(counts(spark, *seconds), capacity)
    assert [at for at, _, _ in found] == [at for at, _ in expected]
    for (_, left, late), (_, wanted) in zip(found, expected, strict=True):
        assert 0 <= left - wanted < 1
        assert 0 <= late - wanted / capacity * 1_000 < 1


def test_minutes_tell_peak_lateness_and_whether_more_is_due_than_they_deliver(spark: SparkSession) -> None:
    frame = counts(spark, (0, 25), (30, 1), (60, 300), (61, 301), (120, 1))
    found = minutes(backlog(frame, 10, MINUTE), 10).orderBy("minute_ms").drop("minute")
    assertDataFrameEqual(found, [
        Row(minute_ms=MINUTE, messages=26, peak=25, waiting=15, late_ms=1_500, over=False),
        Row(minute_ms=MINUTE + 60_000, messages=601, peak=301, waiting=581, late_ms=58_100, over=True),
        Row(minute_ms=MINUTE + 120_000, messages=1, peak=1, waiting=0, late_ms=0, over=False),
    ])  # fmt: skip
