"""Load and backlog over time, computed from counts: DataFrame in, DataFrame out. All times are epoch ms (UTC).

The counts are those of `read.pending`: topic, second_ms, messages, and maybe a shard. Other columns are ignored.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

SECOND_MS, MINUTE_MS = 1_000, 60_000


def within(rows: DataFrame, from_ms: int, until_ms: int) -> DataFrame:
    """Only the messages due before `until_ms`. Messages due before `from_ms` count as due at `from_ms`."""
    start = from_ms - from_ms % SECOND_MS
    return rows.where(F.col("second_ms") < until_ms).withColumn(
        "second_ms", F.greatest("second_ms", F.lit(start).cast("bigint"))
    )


def load_by_minute(rows: DataFrame) -> DataFrame:
    """Messages per minute and topic: minute_ms, minute (timestamp), topic, messages."""
    return _grouped(rows, MINUTE_MS, "topic").select(
        F.col("at_ms").alias("minute_ms"), F.timestamp_millis("at_ms").alias("minute"), "topic", "messages"
    )


def load_by_topic(rows: DataFrame) -> DataFrame:
    """topic, messages, and the topic's fullest second: its time (peak_ms) and its number of messages (peak)."""
    seconds = _grouped(rows, SECOND_MS, "topic")
    # Of equally full seconds, take the first one, so that two runs have the same result.
    fullest = F.max_by(F.struct("at_ms", "messages"), F.struct("messages", -F.col("at_ms")))
    return (
        seconds.groupBy("topic")
        .agg(F.sum("messages").alias("messages"), fullest.alias("fullest"))
        .select("topic", "messages", F.col("fullest.at_ms").alias("peak_ms"), F.col("fullest.messages").alias("peak"))
    )


def hot_seconds(rows: DataFrame, most: int) -> DataFrame:
    """The fullest seconds, fullest first: second_ms, second (timestamp), messages, topics (topic and messages, largest
    first)."""
    topics = F.array_sort(
        F.collect_list(F.struct("topic", "messages")),
        lambda left, right: (
            F.when(left["messages"] > right["messages"], F.lit(-1))
            .when(left["messages"] < right["messages"], F.lit(1))
            .when(left["topic"] < right["topic"], F.lit(-1))
            .otherwise(F.lit(1))
        ),
    )
    # Find the fullest seconds by their sums first, so that the names of topics are collected for these seconds only.
    fullest = _grouped(rows, SECOND_MS).orderBy(F.desc("messages"), "at_ms").limit(most)
    named = (
        _grouped(rows, SECOND_MS, "topic")
        .join(F.broadcast(fullest.select("at_ms")), "at_ms")
        .groupBy("at_ms")
        .agg(F.sum("messages").alias("messages"), topics.alias("topics"))
    )
    return named.orderBy(F.desc("messages"), "at_ms").select(
        F.col("at_ms").alias("second_ms"), F.timestamp_millis("at_ms").alias("second"), "messages", "topics"
    )


def backlog(rows: DataFrame, capacity: float, from_ms: int) -> DataFrame:
    """The queue of messages that are due, by second: second_ms, messages, waiting (at the second's end), late_ms.

    The model is a queue that delivers `capacity` messages per second, first in, first out, and is empty at `from_ms`.
    Messages that are not delivered in a second wait for the next one. `late_ms`: how long after the end of a second its
    last message goes out. Seconds in which no message is due are not listed; the queue empties in them.
    """
    seconds = _grouped(rows, SECOND_MS)
    so_far = Window.orderBy("at_ms").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    passed = (F.col("at_ms") - F.lit(from_ms - from_ms % SECOND_MS)) / SECOND_MS
    due = F.sum("messages").over(so_far)
    ahead = seconds.select(
        "*",
        (due - F.col("messages") - passed * capacity).alias("before"),
        (due - (passed + 1) * capacity).alias("after"),
    )
    waiting = F.greatest(F.lit(0.0), F.col("after") - F.min("before").over(so_far))
    return ahead.select(
        F.col("at_ms").alias("second_ms"), "messages", F.ceil(waiting).cast("bigint").alias("waiting"),
        F.ceil(waiting / capacity * 1_000).cast("bigint").alias("late_ms"),
    )  # fmt: skip


def minutes(seconds: DataFrame, capacity: float) -> DataFrame:
    """`backlog` per minute: minute_ms, minute, messages, peak (of a second), waiting (at most), late_ms (at most), over
    (whether more messages are due than can be delivered in a minute)."""
    minute = (F.col("second_ms") - F.col("second_ms") % MINUTE_MS).alias("minute_ms")
    return (
        seconds.groupBy(minute)
        .agg(
            F.sum("messages").alias("messages"),
            F.max("messages").alias("peak"),
            F.max("waiting").alias("waiting"),
            F.max("late_ms").alias("late_ms"),
        )
        .select(
            "minute_ms", F.timestamp_millis("minute_ms").alias("minute"), "messages", "peak", "waiting", "late_ms",
            (F.col("messages") > F.lit(60.0 * capacity)).alias("over"),
        )
    )  # fmt: skip


def _grouped(rows: DataFrame, step_ms: int, *by: str) -> DataFrame:
    at: Column = F.col("second_ms") - F.col("second_ms") % step_ms
    return rows.groupBy(at.alias("at_ms"), *by).agg(F.sum("messages").alias("messages"))
