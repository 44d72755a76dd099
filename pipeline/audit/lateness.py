"""How late records came: counts per topic, shard, hour and lateness, from which any percentile follows.

A record is late by the time from when its message was due, or from when that was said if that was later (a message that
is sent with a time in the past cannot have come before), to when it was appended. Below 1 s the counts are exact to the
ms, above to three digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

HOUR_MS: Final = 3_600_000
_EXACT_MS = 1_000
_BY: Final = ("topic", "shard", "hour")
_SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


def lateness(outcomes: DataFrame) -> DataFrame:
    """`topic`, `shard`, `hour` (its start, epoch ms), `late_ms`, `messages`.

    Of `outcomes.outcomes`: those that were delivered, each by its first record. What came early is no lateness but a
    violation, or is not known to be one.
    """
    return counted(outcomes.where((F.col("records") > 0) & (F.col("part") != "nowhere")))


def counted(delivered: DataFrame) -> DataFrame:
    """The table of `lateness` from rows with `topic`, `shard`, `delivered_at` and `late` (ms)."""
    digits = F.pow(F.lit(10.0), F.floor(F.log10(F.greatest("late", F.lit(1)))) - 2).cast("bigint")
    bucket = F.when(F.col("late") < _EXACT_MS, F.col("late")).otherwise(F.col("late") - F.col("late") % digits)
    return (
        delivered.where("late >= 0")
        .groupBy(
            "topic", "shard", (F.col("delivered_at") - F.col("delivered_at") % HOUR_MS).alias("hour"),
            bucket.alias("late_ms"),
        )
        .agg(F.count(F.lit(1)).alias("messages"))
    )  # fmt: skip


def together(*rows: DataFrame) -> DataFrame:
    """Rows of several parts of the messages, as of all of them."""
    every = reduce(DataFrame.unionByName, rows)
    return every.groupBy("topic", "shard", "hour", "late_ms").agg(F.sum("messages").alias("messages"))


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of the lateness of `messages` messages, in ms."""

    messages: int
    p50: int
    p90: int
    p99: int
    p999: int
    highest: int


@dataclass(frozen=True, slots=True)
class Late:
    """What the page shows of lateness. `counts`: messages by lateness (ms), ascending. `topics`: None for those of
    topics that were not read."""

    whole: Spread | None = None
    topics: Mapping[str | None, Spread] = field(default_factory=dict)
    shards: Mapping[int, Spread] = field(default_factory=dict)
    hours: Mapping[int, Spread] = field(default_factory=dict)
    counts: Sequence[tuple[int, int]] = ()


def summary(lateness: DataFrame) -> Late:
    """Spreads of rows of `lateness`: a row per topic, shard and hour comes to the driver, however many there are."""
    by_ms = lateness.groupBy("late_ms").agg(F.sum("messages").alias("messages")).orderBy("late_ms").collect()
    if not by_ms:
        return Late()
    groups: dict[str, dict[Any, Spread]] = {name: {} for name in ("all", *_BY)}
    for row in spreads(lateness).collect():
        key = row.key if row.by == "topic" or row.key is None else int(row.key)
        groups[row.by][key] = Spread(row.messages, row.p50, row.p90, row.p99, row.p999, row.highest)
    for name, rows in groups.items():
        groups[name] = {key: rows[key] for key in sorted(rows, key=lambda key: (key is None, key))}
    counts = [(row.late_ms, row.messages) for row in by_ms]
    return Late(groups["all"][None], groups["topic"], groups["shard"], groups["hour"], counts)


def spreads(lateness: DataFrame) -> DataFrame:
    """`by` (topic, shard, hour, or all), `key` (as text; null for all), and the fields of `Spread`, exactly: a
    percentile is the least lateness that so large a share of the messages does not exceed."""
    keys = [F.struct(F.lit(name).alias("by"), F.col(name).cast("string").alias("key")) for name in _BY]
    keys.append(F.struct(F.lit("all").alias("by"), F.lit(None).cast("string").alias("key")))
    each = lateness.select(F.explode(F.array(*keys)).alias("one"), "late_ms", "messages")
    counts = each.groupBy("one.by", "one.key", "late_ms").agg(F.sum("messages").alias("messages"))
    of = Window.partitionBy("by", "key")
    upto = of.orderBy("late_ms").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    below = counts.withColumns({"below": F.sum("messages").over(upto), "total": F.sum("messages").over(of)})
    return below.groupBy("by", "key").agg(
        F.sum("messages").alias("messages"),
        *(
            F.min(F.when(F.col("below") >= share * F.col("total"), F.col("late_ms"))).alias(name)
            for name, share in _SHARES.items()
        ),
        F.max("late_ms").alias("highest"),
    )
