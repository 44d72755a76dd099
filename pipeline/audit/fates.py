"""One row per message: what the commands and the ledger say of it, and what the topics show.

All that speaks of a message is put below one another and grouped by message: that finds copies and records of messages
that nobody sent in the same pass, and costs no more than the joins would. The columns are numbers only (topics and
payloads as xxhash64), so that Spark can group them without making objects.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duemq.model.ids import DIRECT
from duemq.model.timing import WINDOW_MS
from duemq.pipeline.audit.changes import MESSAGE

PLACE_BITS: Final = 48
_ACCEPTED, _CHANGED, _DELIVERED, _BURIED = range(4)
_NUMBERS: Final = (
    "due", "at", "topic", "content", "mac", "place", "asked", "asked_at", "place_offset", "place_row", "cancels",
    "cancel_at", "buried", "redriven", "is_dead", "told_delivered", "told_cancelled", "told_dead", "moves", "counted",
)  # fmt: skip


def _event(frame: DataFrame, kind: int, **columns: Column | str) -> DataFrame:
    given = {name: F.col(of) if isinstance(of, str) else of for name, of in columns.items()}
    return frame.select(
        F.col("shard"), F.col("offset").cast("bigint").alias("offset"), F.col("row").cast("bigint").alias("row"),
        F.lit(kind).cast("tinyint").alias("event"),
        *(given.get(name, F.lit(None)).cast("bigint").alias(name) for name in _NUMBERS),
    )  # fmt: skip


def events(
    schedules: DataFrame, adopted: DataFrame, changes: DataFrame, deliveries: DataFrame, dead_letters: DataFrame
) -> DataFrame:
    """All that speaks of messages, below one another.

    `schedules`: see `changes.schedules`; `adopted`: `adopted.rows_of`; `changes`: `changes.summary`; the others:
    `logs.deliveries` and `logs.dead_letters`. Records whose id is none have the shard -1.
    """
    made = _event(
        schedules.withColumn("row", F.lit(0)), _ACCEPTED, due="due", at="at", topic=F.xxhash64("topic"),
        content="content",
    )  # fmt: skip
    in_files = _event(
        adopted, _ACCEPTED, due="due", at="at", counted="counted",
        topic=F.when(F.col("topic").isNotNull(), F.xxhash64("topic")),
    )  # fmt: skip
    changed = _event(
        changes, _CHANGED,
        **{name: name for name in _NUMBERS if name not in ("at", "topic", "content", "mac", "place", "counted")},
    )  # fmt: skip
    place = F.shiftleft(F.col("partition").cast("bigint"), PLACE_BITS) + F.col("offset")
    seen = deliveries.select(
        F.coalesce("shard", F.lit(-1)).alias("shard"), F.coalesce("first_offset", F.xxhash64("id")).alias("offset"),
        F.coalesce("first_row", F.lit(0)).alias("row"), "at", F.col("first_due").alias("asked"), "mac", "content",
        F.col("due"), F.xxhash64("topic").alias("topic"), place.alias("place"),
    )  # fmt: skip
    shown = _event(seen, _DELIVERED, due="due", at="at", topic="topic", content="content", mac="mac", asked="asked",
                   place="place")  # fmt: skip
    letters = dead_letters.where("shard is not null").select(
        "shard", F.col("first_offset").alias("offset"), F.col("first_row").alias("row"), "at"
    )
    return made.unionByName(in_files).unionByName(changed).unionByName(shown).unionByName(
        _event(letters, _BURIED, at="at")
    )  # fmt: skip


def messages(events: DataFrame) -> DataFrame:
    """`events` grouped by message. See `fates` for what the columns mean."""

    def of(event: int, column: str) -> Column:
        return F.when(F.col("event") == event, F.col(column))

    def one(event: int, column: str) -> Column:
        return F.max(of(event, column))  # there is one row of this kind

    def flag(column: str) -> Column:
        return F.coalesce(one(_CHANGED, column), F.lit(0)).alias(column)

    return events.groupBy(*MESSAGE).agg(
        F.count_if(F.col("event") == _ACCEPTED).alias("accepts"),
        one(_ACCEPTED, "due").alias("first_due"),
        one(_ACCEPTED, "at").alias("accepted_at"),
        one(_ACCEPTED, "topic").alias("topic_hash"),
        one(_ACCEPTED, "content").alias("content"),
        (F.coalesce(one(_ACCEPTED, "counted"), F.lit(0)) == 1).alias("counted"),
        *(one(_CHANGED, name).alias(name) for name in (
            "asked", "asked_at", "place_offset", "place_row", "cancel_at",
        )),
        one(_CHANGED, "due").alias("place_due"),
        *map(flag, (
            "cancels", "buried", "redriven", "is_dead", "told_delivered", "told_cancelled", "told_dead", "moves",
        )),
        F.count_if(F.col("event") == _DELIVERED).alias("records"),
        F.min(of(_DELIVERED, "at")).alias("delivered_at"),
        *(
            expression
            for name in ("topic", "content", "mac", "asked", "place")
            for expression in (
                F.min(of(_DELIVERED, name)).alias(f"least_{name}"), F.max(of(_DELIVERED, name)).alias(f"most_{name}"),
            )
        ),
        F.min(of(_DELIVERED, "due")).alias("shown_due"),
        F.count_if(F.col("event") == _BURIED).alias("letters"),
        F.max(of(_BURIED, "at")).alias("letter_at"),
    )  # fmt: skip


def fates(messages: DataFrame, windows: DataFrame, topics: DataFrame, anywhere_from: int | None = None) -> DataFrame:
    """`messages` with what should have become of them: `part` and `fate`.

    `windows`: `window.as_frame`. `topics`: the topics that were read: `topic`, `topic_hash`, `known_from` (epoch ms:
    what was delivered there up to then may have been dropped). `anywhere_from`: the same for messages whose topic is
    not known; None where topics were left out.

    `part`: `range` (accepted in the range that is audited; the others are looked at, but not accounted), `earlier`,
    `later`, `direct` (without delay), `nowhere` (no shard has such messages).
    `fate` is what the ledger says of a message of the range: delivered, cancelled, moved (on, and waiting), dead,
    pending; `lost`: delivered, and there is no record; `unproven`: delivered, and its record cannot be there any more,
    or its topic was not read, or it is known by its number and due in a window that has only begun. Of messages of no
    account: `none`. `asked`, `asked_at`: when it should be delivered by what was last said, and when that was said.
    `late`: ms from the later of these to its first record.
    """
    c = F.col
    read = topics.select(F.col("topic_hash").alias("read_hash"), "topic", F.col("known_from").alias("topic_from"))
    joined = messages.join(F.broadcast(windows), "shard", "left").join(
        F.broadcast(read), F.coalesce("topic_hash", "least_topic") == F.col("read_hash"), "left"
    )
    part = (
        F.when(c("shard") == DIRECT, "direct")
        .when(c("known_from").isNull(), "nowhere")
        .when((c("accepts") > 0) & (c("offset") < c("applied")), "range")
        .when(c("offset") < c("known_from"), "earlier")
        .when(c("offset") < c("applied"), "range")
        .otherwise("later")
    )
    key_due = F.coalesce("place_due", "first_due")
    key = F.struct(key_due, F.coalesce("place_offset", "offset"), F.coalesce("place_row", "row"))
    passed = key <= F.struct("cursor_due", "cursor_offset", "cursor_row")
    vague = c("counted") & c("place_due").isNull() & ~passed & (c("first_due") - WINDOW_MS < c("cursor_due"))
    topic_from = F.coalesce("topic_from", F.when(c("topic_hash").isNull(), F.lit(anywhere_from).cast("bigint")))
    provable = F.greatest(key_due, c("accepted_at")) > topic_from
    own = c("counted") | (c("least_asked") == c("first_due")) | (c("most_asked") == c("first_due"))
    fate = (
        F.when((c("part") != "range") | (c("accepts") == 0), "none")
        .when(c("cancels") > 0, "cancelled")
        .when(c("is_dead") == 1, "dead")
        .when(vague & (c("records") == 0), "unproven")
        .when(~passed & ~vague, F.when(c("moves") > 0, "moved").otherwise("pending"))
        .when((c("records") > 0) & own, "delivered")
        .when(F.coalesce(provable, F.lit(False)), "lost")
        .otherwise("unproven")
    )
    asked = F.coalesce("asked", F.when(~c("counted"), c("first_due")), "shown_due")
    return (
        joined.withColumn("part", part)
        .withColumns(
            {
                "fate": fate,
                "asked": asked,
                "asked_at": F.coalesce("asked_at", "accepted_at"),
                "passed": passed,
            }
        )
        .withColumn("late", c("delivered_at") - F.greatest("asked", "asked_at"))
        .drop("began_at", "topic_from", "read_hash", "cursor_due", "cursor_offset", "cursor_row")
    )
