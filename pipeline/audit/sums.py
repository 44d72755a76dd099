"""Which messages need a look: sums of hashes first, rows only where they differ.

Nearly all messages have no history but their schedule and one record. They are compared in buckets of offsets: what the
commands say has to be there against what is there, each as a count, an exclusive or and a sum of hashes over all that a
message is judged by. Where these are equal and no record is early, so is every message of the bucket, and only its
counts are needed. Set apart from the beginning is every message that anything else was said of: changed, deferred,
answered, dead, late in the buffer, overdue, delivered behind the range.

What needs a look goes through `outcomes.py` as if there was nothing else. A message is wholly in one of both parts. So
whatever `violations.py` judges a message by that has no other history must be in `_HASHED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duemq.model.log.ledger import Answer
from duemq.pipeline.audit.changes import MESSAGE
from duemq.pipeline.audit.lateness import counted
from duemq.pipeline.audit.violations import MARGIN_MS, OVERDUE_MS

_HASHED: Final = ("shard", "offset", "row", "due", "shown", "attempt", "topic", "content", "metadata")
_BUCKET: Final = ("shard", "offset_bucket", "row_bucket")
_BUCKET_BITS: Final = 12
_HIGH_BITS: Final = 16  # cut off before hashes are summed up, so that a bucket of any size fits into 64 bits
FEW: Final = 250_000
"""The number of records that are looked at row by row in less time than Spark takes to plan and compile this."""
_MAX_BROADCAST: Final = 2_000_000  # rows of three numbers


@dataclass(frozen=True, slots=True)
class Agreed:
    """Messages of a shard that need no look: `delivered` once and as they should be, `unread` (delivered by the
    ledger, to topics that were not read), `pending`, and `later` (not applied in the range)."""

    delivered: int
    unread: int
    pending: int
    later: int


@dataclass(frozen=True, slots=True)
class Compared:
    """`commands`, `imported`, `deliveries`: the rows of messages that need a look. `agreed`: the others, by shard;
    `late`: rows of `lateness.lateness` of these. `buckets`: how many were compared, `unequal`: how many of them
    differ."""

    commands: DataFrame
    imported: DataFrame
    deliveries: DataFrame
    agreed: Mapping[int, Agreed]
    late: DataFrame
    buckets: int
    unequal: int


def compared(
    commands: DataFrame,
    imported: DataFrame,
    deliveries: DataFrame,
    dead_letters: DataFrame,
    answers: DataFrame,
    changes: DataFrame,
    deferrals: DataFrame,
    windows: DataFrame,
    topics: DataFrame,
    tolerance_ms: int = 0,
) -> Compared:
    """Frames as `outcomes.events` takes them, `changes` and `deferrals` as `changes.py` makes them. `windows`:
    `window.as_frame`; `topics`: those that were read, with `topic`. `commands` and `deliveries` are read several times,
    so that they should be persisted."""
    shards = F.broadcast(windows)
    sent = _sent(commands, imported).join(shards, "shard")
    records = _records(deliveries, shards)
    apart = _apart(sent, records, dead_letters, answers, changes, deferrals, commands).distinct().localCheckpoint()
    few = apart.count() <= _MAX_BROADCAST
    others = F.broadcast(apart) if few else apart
    buckets = _buckets(sent, records, others, topics, tolerance_ms).localCheckpoint()
    rows = buckets.groupBy("shard").agg(
        *(F.sum(F.when(F.col("equal"), F.col(name))).alias(name) for name in ("n", "unread", "pending", "later")),
        F.count(F.lit(1)).alias("buckets"), F.count_if(~F.col("equal")).alias("unequal"),
    ).collect()  # fmt: skip
    unequal = F.broadcast(buckets.where(~F.col("equal")).select(*_BUCKET, F.lit(True).alias("unequal")))
    marked = others.withColumn("apart", F.lit(True))

    def looked(frame: DataFrame, offset: str, row: str) -> DataFrame:
        """A frame with `look`: whether the row is of a message that needs one."""
        key = _renamed(marked, frame, offset, row)
        in_bucket = frame.withColumns(_bucket(offset, row)).join(unequal, list(_BUCKET), "left")
        look = F.coalesce("apart", F.lit(False)) | F.coalesce("unequal", F.lit(False))
        return in_bucket.join(key, ["shard", offset, row], "left").withColumn("look", look)

    judged = looked(records, "first_offset", "first_row")
    plain = judged.where(F.col("inside") & ~F.col("look"))
    late = counted(
        plain.select(
            "topic", "shard", F.col("at").alias("delivered_at"), (F.col("at") - F.col("first_due")).alias("late")
        )
    )  # fmt: skip
    schedules = commands.where("kind = 'schedule'").withColumn("row", F.lit(0).cast("bigint"))
    return Compared(
        looked(schedules, "offset", "row").where("look").select(*commands.columns),
        looked(imported, "offset", "row").where("look or counted").select(*imported.columns),
        judged.where(~F.col("inside") | F.col("look")).select(*deliveries.columns),
        {row.shard: Agreed(*(row[name] or 0 for name in ("n", "unread", "pending", "later"))) for row in rows},
        late, sum(row.buckets for row in rows), sum(row.unequal for row in rows),
    )  # fmt: skip


def _renamed(apart: DataFrame, frame: DataFrame, offset: str, row: str) -> DataFrame:
    return apart.select("shard", F.col("offset").alias(offset), F.col("row").alias(row), "apart")


def _sent(commands: DataFrame, imported: DataFrame) -> DataFrame:
    """The messages whose records are known in advance."""
    names = ("due", "at", "topic", "content", "metadata", "expires")
    schedules = commands.where("kind = 'schedule'").select(
        "shard", "offset", F.lit(0).cast("bigint").alias("row"), *names
    )
    return schedules.unionByName(imported.where("not counted").select(*MESSAGE, *names))


def _records(deliveries: DataFrame, shards: DataFrame) -> DataFrame:
    """Deliveries with `inside` (the message was accepted in the range or later) and the windows' columns."""
    inside = F.coalesce(F.col("first_offset") >= F.col("known_from"), F.lit(False))
    return deliveries.join(shards, "shard", "left").withColumn("inside", inside)


def _passed(due: str, offset: str, row: str) -> Column:
    """Whether the cursor of its shard has passed a key."""
    c = F.col
    return (c(due) < c("cursor_due")) | (
        (c(due) == c("cursor_due"))
        & (
            (c(offset) < c("cursor_offset"))
            | ((c(offset) == c("cursor_offset")) & (c(row) <= c("cursor_row")))
        )
    )  # fmt: skip


def _apart(
    sent: DataFrame,
    records: DataFrame,
    dead_letters: DataFrame,
    answers: DataFrame,
    changes: DataFrame,
    deferrals: DataFrame,
    commands: DataFrame,
) -> DataFrame:
    """The messages of which more is said than their schedule, and those that a record came of behind the range."""
    c, first = F.col, F.lit(0).cast("bigint")
    overdue = (~_passed("due", "offset", "row") & (c("offset") < c("applied")) & (c("due") < c("seen_at"))) | (
        (c("offset") >= c("applied")) & (c("at") + OVERDUE_MS < c("seen_at"))
    )
    behind = ~_passed("first_due", "first_offset", "first_row") | (c("first_offset") >= c("applied"))
    of_ids = (c("first_offset").alias("offset"), c("first_row").alias("row"))
    parts = (
        sent.where((c("at") > c("due")) | overdue).select(*MESSAGE),
        records.where(c("inside") & behind).select("shard", *of_ids),
        dead_letters.where("first_offset is not null").select("shard", *of_ids),
        answers.where(c("answer") != int(Answer.ACCEPTED)).select("shard", "offset", first.alias("row")),
        commands.where("first_offset is not null").select("shard", *of_ids),
        changes.where("offset is not null").select(*MESSAGE),
        deferrals.select(*MESSAGE),
    )
    return reduce(DataFrame.unionByName, parts)


def _bucket(offset: str, row: str) -> dict[str, Column]:
    return {
        "offset_bucket": F.shiftright(F.col(offset), _BUCKET_BITS), "row_bucket": F.shiftright(F.col(row), _BUCKET_BITS)
    }  # fmt: skip


def _buckets(sent: DataFrame, records: DataFrame, apart: DataFrame, topics: DataFrame, tolerance_ms: int) -> DataFrame:
    """Per bucket whether both sides are `equal`, and what the commands say: `n` records, `unread` others, `pending` and
    `later` messages."""
    c = F.col
    read = F.broadcast(topics.select("topic", F.lit(True).alias("read")))
    plain = sent.join(apart, list(MESSAGE), "left_anti").join(read, "topic", "left")
    applied, passed = c("offset") < c("applied"), _passed("due", "offset", "row")
    expected = applied & passed & c("read").isNotNull()
    expected_rows = plain.withColumns(
        {"shown": c("due"), "attempt": F.lit(1), "expected": expected, **_bucket("offset", "row")}
    ).withColumn("hash", F.when(c("expected"), F.xxhash64(*_HASHED)))
    left = expected_rows.groupBy(*_BUCKET).agg(
        *_sums("expected"), F.count_if(applied & passed & c("read").isNull()).alias("unread"),
        F.count_if(applied & ~passed).alias("pending"), F.count_if(~applied).alias("later"),
        F.min(F.when(c("expected") & (c("expires") > 0), c("expires") - c("due"))).alias("least_life"),
    )  # fmt: skip
    shown = records.where("inside").select(
        "shard", F.col("first_offset").alias("offset"), F.col("first_row").alias("row"), c("first_due").alias("due"),
        c("due").alias("shown"), "attempt", "topic", "content", "metadata", "at",
    )  # fmt: skip
    record_rows = shown.join(apart, list(MESSAGE), "left_anti").withColumns(
        {"there": F.lit(True), "hash": F.xxhash64(*_HASHED), **_bucket("offset", "row")}
    )
    right = record_rows.groupBy(*_BUCKET).agg(
        *(one.alias(f"seen_{name}") for one, name in zip(_sums("there"), ("n", "x", "y"), strict=True)),
        F.max(c("at") + tolerance_ms < c("due")).alias("early"),
        F.max(c("at") - c("due")).alias("most_late"),
    )
    both = left.join(right, list(_BUCKET), "full")
    same = reduce(
        Column.__and__,
        (F.coalesce(name, F.lit(0)) == F.coalesce(f"seen_{name}", F.lit(0)) for name in ("n", "x", "y")),
    )
    # The latest record may be of another message than the shortest life: then rows are looked at.
    in_time = F.coalesce(c("most_late") <= c("least_life") + MARGIN_MS + tolerance_ms, F.lit(True))
    equal = same & in_time & ~F.coalesce("early", F.lit(False))
    return both.select(*_BUCKET, equal.alias("equal"), "n", "unread", "pending", "later")


def _sums(where: str) -> tuple[Column, Column, Column]:
    """How many, and two sums of their hashes that differ wherever the hashes do, but by a chance of 1 in 2**64."""
    of = F.col("hash")
    return (
        F.count_if(F.col(where)).alias("n"), F.bit_xor(of).alias("x"),
        F.sum(F.shiftright(of, _HIGH_BITS)).alias("y"),
    )  # fmt: skip
