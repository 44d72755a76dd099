"""A forecast from beginning to end: count pending messages, write tables, and summarize them for readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from duemq.pipeline.files.uris import uri_of
from duemq.pipeline.forecast.capacity import Capacity
from duemq.pipeline.forecast.load import (
    MINUTE_MS,
    backlog,
    hot_seconds,
    load_by_minute,
    load_by_topic,
    minutes,
    within,
)
from duemq.pipeline.forecast.read import PendingMessages
from duemq.pipeline.spark.progress import Teller, step

OTHERS: Final = "(others)"
LATE_MS: Final = 1_000  # the model's resolution
_LISTED: Final = 100  # late minutes in the result; the table has all of them
_NAMED: Final = 6  # topics that are shown by name in the plot
_BARS: Final = 240
_STEPS_MS: Final = tuple(minutes * MINUTE_MS for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1_440))


@dataclass(frozen=True, slots=True)
class TopicForecast:
    topic: str
    messages: int
    peak: int
    peak_ms: int


@dataclass(frozen=True, slots=True)
class HotSecond:
    """`topics`: names with their number of messages, largest first. `late_ms`: how late the last message goes out."""

    second_ms: int
    messages: int
    late_ms: int
    topics: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class LateMinute:
    """`over`: more messages are due than can be delivered in a minute; if it is false, the minute is late because of a
    hot second or of earlier minutes."""

    minute_ms: int
    messages: int
    peak: int
    waiting: int
    late_ms: int
    over: bool


@dataclass(frozen=True, slots=True)
class SizeBar:
    """A bar in the plot: `messages` by topic, the size of the fullest second, and the latest delivery."""

    at_ms: int
    messages: dict[str, int]
    peak: int
    late_ms: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """`pending` is `counted` plus `beyond`, which are due after the end; `overdue` of `counted` were due before the
    start.

    `late`: the first of the `late_minutes` minutes that are late or above capacity. Each of the `bars` covers
    `step_ms`.
    """

    folder: str
    as_of_ms: int
    from_ms: int
    until_ms: int
    capacity: Capacity
    pending: int
    counted: int
    overdue: int
    beyond: int
    topics: tuple[TopicForecast, ...]
    hot: tuple[HotSecond, ...]
    late_minutes: int
    late: tuple[LateMinute, ...]
    most_late_ms: int
    step_ms: int
    bars: tuple[SizeBar, ...]

    def document(self) -> dict[str, Any]:
        """The document for `--json`: everything except the plot."""
        document = asdict(self)
        del document["bars"], document["step_ms"]
        return document | {"capacity": self.capacity._asdict()}


def forecast(
    pending: PendingMessages,
    capacity: Capacity,
    from_ms: int,
    until_ms: int,
    hot: int,
    into: str | None,
    teller: Teller,
) -> Forecast:
    """Count the messages due from `from_ms` until `until_ms`, list the `hot` fullest seconds, and write tables below
    `into`, a path on this machine or a URI.

    The tables are load_by_minute, hot_seconds and backlog (Parquet); existing tables are replaced.
    """
    spark = pending.rows.sparkSession
    rows = within(pending.rows, from_ms, until_ms)
    by_minute = load_by_minute(rows)
    seconds = backlog(rows, capacity.per_second, from_ms).persist(StorageLevel.MEMORY_AND_DISK)
    hottest = hot_seconds(rows, hot).join(seconds.select("second_ms", "late_ms"), "second_ms")
    by_the_minute = minutes(seconds, capacity.per_second)
    late = by_the_minute.where(F.col("over") | (F.col("late_ms") >= LATE_MS))
    try:
        with step(spark, teller, "counting due messages"):
            topics = [TopicForecast(**row.asDict()) for row in load_by_topic(rows).collect()]
            counted = sum(topic.messages for topic in topics)
            overdue = pending.rows.where(F.col("second_ms") < from_ms - from_ms % 1_000)
            overdue_count = _total(overdue)
        with step(spark, teller, "finding hot seconds and late minutes"):
            hot_list = tuple(sorted(map(_hot, hottest.collect()), key=lambda one: (-one.messages, one.second_ms)))
            (worst,) = late.agg(F.count("*").alias("count"), F.max("late_ms").alias("late_ms")).collect()
            first = late.drop("minute").orderBy("minute_ms").limit(_LISTED)
            listed = tuple(LateMinute(*row) for row in first.collect())
        if into is not None:
            with step(spark, teller, f"writing tables to {into}"):
                for name, table, order in (
                    ("load_by_minute", by_minute, ["minute_ms", "topic"]),
                    ("hot_seconds", hottest.withColumn("second", F.timestamp_millis("second_ms")), ["messages"]),
                    ("backlog", by_the_minute, ["minute_ms"]),
                ):
                    ascending = name != "hot_seconds"
                    ordered = table.coalesce(1).sortWithinPartitions(*order, ascending=ascending)
                    ordered.write.mode("overwrite").parquet(f"{uri_of(into)}/{name}")
        topics.sort(key=lambda topic: (-topic.messages, topic.topic))
        with step(spark, teller, "drawing"):
            step_ms, bars = _bars(by_minute, by_the_minute, from_ms, until_ms, [one.topic for one in topics[:_NAMED]])
    finally:
        seconds.unpersist()
    return Forecast(
        str(pending.folder), pending.as_of_ms, from_ms, until_ms, capacity, pending.messages, counted, overdue_count,
        pending.messages - counted, tuple(topics), hot_list, worst["count"], listed, worst.late_ms or 0, step_ms, bars,
    )  # fmt: skip


def _total(rows: DataFrame) -> int:
    (row,) = rows.agg(F.coalesce(F.sum("messages"), F.lit(0)).alias("messages")).collect()
    total: int = row.messages
    return total


def _hot(row: Row) -> HotSecond:
    return HotSecond(row.second_ms, row.messages, row.late_ms, tuple((one.topic, one.messages) for one in row.topics))


def _bars(
    by_minute: DataFrame, by_the_minute: DataFrame, from_ms: int, until_ms: int, named: Sequence[str]
) -> tuple[int, tuple[SizeBar, ...]]:
    """The width of a bar, and all bars that have messages."""
    (last,) = by_minute.agg(F.max("minute_ms").alias("minute_ms")).collect()
    if last.minute_ms is None:
        return MINUTE_MS, ()
    end = min(until_ms, last.minute_ms + MINUTE_MS)
    step_ms = next((one for one in _STEPS_MS if (end - from_ms) / one <= _BARS), _STEPS_MS[-1])
    at = (F.col("minute_ms") - F.col("minute_ms") % step_ms).alias("at_ms")
    topic = F.when(F.col("topic").isin(list(named)), F.col("topic")).otherwise(F.lit(OTHERS)).alias("topic")
    counts = by_minute.groupBy(at, topic).agg(F.sum("messages").alias("messages")).collect()
    worst = by_the_minute.groupBy(at).agg(F.max("peak").alias("peak"), F.max("late_ms").alias("late_ms")).collect()
    messages: dict[int, dict[str, int]] = {}
    for row in counts:
        messages.setdefault(row.at_ms, {})[row.topic] = row.messages
    return step_ms, tuple(
        SizeBar(row.at_ms, messages[row.at_ms], row.peak, row.late_ms)
        for row in sorted(worst, key=lambda row: row.at_ms)
    )
