"""One row per message: what the commands and the ledger say of it, and what the topics show.

All that speaks of a message is put below one another and grouped by message: that finds copies and records of messages
that nobody sent in the same pass, and costs no more than the joins would. The columns are numbers only (topics and
payloads as xxhash64), so that Spark can group them without making objects.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duemq.model.ids import DIRECT
from duemq.model.ledger import Answer
from duemq.model.timing import WINDOW_MS
from duemq.pipeline.audit.changes import MESSAGE

PLACE_BITS: Final = 48
_SENT, _ANSWERED, _ADOPTED, _CHANGED, _DELIVERED, _BURIED = range(6)
_NUMBERS: Final = ("due", "at", "topic", "content", "mac", "place", "asked")
_FLAG_BITS: Final = 7
_FLAGS: Final = (
    "cancels", "buried", "redriven", "is_dead", "told_delivered", "told_cancelled", "told_dead", "moves",
)  # fmt: skip
"""Of a message that was changed, each up to 127, in one number."""


def _event(frame: DataFrame, kind: int, row: Column | None = None, **columns: Column | str) -> DataFrame:
    """All kinds share few columns, whatever they mean for each: what is narrow is sorted and spilled soon."""
    given = {name: F.col(of) if isinstance(of, str) else of for name, of in columns.items()}
    return frame.select(
        F.col("shard").cast("int").alias("shard"), F.col("offset").cast("bigint").alias("offset"),
        (F.col("row") if row is None else row).cast("bigint").alias("row"), F.lit(kind).cast("tinyint").alias("event"),
        *(given.get(name, F.lit(None)).cast("bigint").alias(name) for name in _NUMBERS),
    )  # fmt: skip


def events(
    commands: DataFrame,
    answers: DataFrame,
    adopted: DataFrame,
    changes: DataFrame,
    deliveries: DataFrame,
    dead_letters: DataFrame,
) -> DataFrame:
    """All that speaks of messages, below one another.

    `commands`, `deliveries`, `dead_letters`: see `logs`; `answers`: `changes.answers`; `adopted`: `adopted.rows_of`;
    `changes`: `changes.summary`. Records whose id is none have the shard -1.
    """
    first = F.lit(0)
    sent = _event(
        commands.where("kind = 'schedule'"), _SENT, first, due="due", at="at", topic=F.xxhash64("topic"),
        content="content",
    )  # fmt: skip
    answered = _event(answers, _ANSWERED, first, content="answer")
    topic = F.when(F.col("topic").isNotNull(), F.xxhash64("topic"))
    in_files = _event(adopted, _ADOPTED, due="due", at="at", topic=topic, place=F.col("counted").cast("int"))
    flags = F.lit(0).cast("bigint")
    for at, name in enumerate(_FLAGS):
        few = F.least(F.col(name).cast("bigint"), F.lit((1 << _FLAG_BITS) - 1))
        flags = flags + F.shiftleft(few, at * _FLAG_BITS)
    changed = _event(
        changes, _CHANGED, due="due", at="asked_at", asked="asked", place="place_offset", mac="place_row", content=flags
    )
    place = F.shiftleft(F.col("partition").cast("bigint"), PLACE_BITS) + F.col("offset")
    seen = deliveries.select(
        F.coalesce("shard", F.lit(-1)).alias("shard"), F.coalesce("first_offset", F.xxhash64("id")).alias("offset"),
        F.coalesce("first_row", F.lit(0)).alias("row"), "at", F.col("first_due").alias("asked"), "mac", "content",
        F.col("due"), F.xxhash64("topic").alias("topic"), place.alias("place"),
    )  # fmt: skip
    shown = _event(seen, _DELIVERED, None, **{name: name for name in _NUMBERS})
    letters = dead_letters.where("shard is not null").select(
        "shard", F.col("first_offset").alias("offset"), F.col("first_row").alias("row"), "at"
    )
    buried = _event(letters, _BURIED, at="at")
    return reduce(DataFrame.unionByName, (sent, answered, in_files, changed, shown, buried))


def messages(events: DataFrame) -> DataFrame:
    """`events` grouped by message. See `fates` for what the columns mean."""

    def of(event: int, column: str) -> Column:
        return F.when(F.col("event") == event, F.col(column))

    def one(event: int, column: str) -> Column:
        return F.max(of(event, column))  # there is one row of this kind

    def made(column: str) -> Column:
        return F.max(F.when(F.col("event").isin(_SENT, _ADOPTED), F.col(column)))

    # Shuffled as they are: nearly every message has one event of a kind, so that to group them before would only make
    # wide rows of narrow ones.
    grouped = events.repartition(*MESSAGE).groupBy(*MESSAGE).agg(
        F.count_if(F.col("event") == _SENT).alias("sent"),
        one(_ANSWERED, "content").alias("answer"),
        F.count_if(F.col("event") == _ADOPTED).alias("adopted"),
        made("due").alias("first_due"),
        made("at").alias("accepted_at"),
        made("topic").alias("topic_hash"),
        one(_SENT, "content").alias("content"),
        (F.coalesce(one(_ADOPTED, "place"), F.lit(0)) == 1).alias("counted"),
        one(_CHANGED, "asked").alias("asked"),
        one(_CHANGED, "at").alias("asked_at"),
        one(_CHANGED, "due").alias("place_due"),
        one(_CHANGED, "place").alias("place_offset"),
        one(_CHANGED, "mac").alias("place_row"),
        F.coalesce(one(_CHANGED, "content"), F.lit(0)).alias("flags"),
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
    new = (F.col("sent") > 0) & (F.col("answer").isNull() | (F.col("answer") == int(Answer.ACCEPTED)))
    accepts = F.when(new | (F.col("adopted") > 0), 1).otherwise(0)
    # Groups of commands that are no message: of changes, and of schedules that were refused.
    speaks = (F.col("accepts") > 0) | (F.col("records") > 0) | (F.col("letters") > 0) | (F.col("flags") > 0)
    mask = (1 << _FLAG_BITS) - 1
    flags = {name: F.shiftright("flags", at * _FLAG_BITS).bitwiseAND(F.lit(mask)) for at, name in enumerate(_FLAGS)}
    return grouped.withColumn("accepts", accepts).where(speaks).withColumns(flags).drop(
        "sent", "answer", "adopted", "flags"
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
