"""One row per message: what the commands and the ledger say of it, and what the topics show.

All that speaks of a message is put below one another and grouped by message: that finds copies and records of messages
that nobody sent in the same pass, and costs no more than the joins would. Topics and payloads are there as xxhash64, so
that Spark can group without making objects. What each kind of event says is a struct of its own: one that is null takes
as much of a row as one number.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duemq.model.log.ledger import Answer
from duemq.model.messages.ids import DIRECT
from duemq.model.timing import WINDOW_MS
from duemq.pipeline.audit.changes import MESSAGE

PLACE_BITS: Final = 48
_EVENTS: Final = {
    "sent": "struct<due: bigint, at: bigint, topic: bigint, content: bigint, metadata: bigint, expires: bigint>",
    "answered": "struct<answer: int>",
    "imported": "struct<due: bigint, at: bigint, topic: bigint, content: bigint, metadata: bigint, expires: bigint, "
    "counted: boolean>",
    "changed": "struct<place_due: bigint, place_offset: bigint, place_row: bigint, asked: bigint, asked_at: bigint, "
    "shown: bigint, failures: bigint, cancels: bigint, buried: bigint, redriven: bigint, is_dead: boolean, "
    "moves: bigint, untrue: bigint, unknown_at: bigint, claims: bigint, untrue_command: bigint, doubtful: bigint, "
    "exhausted: bigint, wrong_deferrals: bigint, expired_at: bigint, least_reason: bigint, most_reason: bigint>",
    "delivered": "struct<at: bigint, topic: bigint, content: bigint, metadata: bigint, id_due: bigint, mac: bigint, "
    "place: bigint, due: bigint, attempt: int>",
    "letter": "struct<at: bigint, topic: bigint, content: bigint, metadata: bigint, reason: bigint>",
}
"""What speaks of a message, and what it says."""


def _event(frame: DataFrame, kind: str, row: Column | None = None) -> DataFrame:
    """Rows with the columns of `MESSAGE` and of this kind's struct."""
    fields = [field.split(":")[0].strip() for field in _EVENTS[kind][len("struct<") : -1].split(", ")]
    others = [F.lit(None).cast(schema).alias(name) for name, schema in _EVENTS.items() if name != kind]
    return frame.select(
        F.col("shard").cast("int").alias("shard"), F.col("offset").cast("bigint").alias("offset"),
        (F.col("row") if row is None else row).cast("bigint").alias("row"),
        F.struct(*fields).cast(_EVENTS[kind]).alias(kind), *others,
    ).select(*MESSAGE, *_EVENTS)  # fmt: skip


def events(
    commands: DataFrame,
    answers: DataFrame,
    imported: DataFrame,
    changes: DataFrame,
    deliveries: DataFrame,
    dead_letters: DataFrame,
) -> DataFrame:
    """All that speaks of messages, below one another.

    `commands`, `deliveries`, `dead_letters`: see `logs`; `answers`: `changes.answers`; `imported`: `imported.rows_of`;
    `changes`: `changes.summary`. Records whose id is none have the shard -1.
    """
    first = F.lit(0)
    topic = F.when(F.col("topic").isNotNull(), F.xxhash64("topic"))
    schedules = commands.where("kind = 'schedule'").select(
        "shard", "offset", "due", "at", topic.alias("topic"), "content", "metadata", "expires"
    )
    place = F.shiftleft(F.col("partition").cast("bigint"), PLACE_BITS) + F.col("offset")
    delivery_rows = deliveries.select(
        F.coalesce("shard", F.lit(-1)).alias("shard"), F.coalesce("first_offset", F.xxhash64("id")).alias("offset"),
        F.coalesce("first_row", F.lit(0)).alias("row"), "at", F.col("first_due").alias("id_due"), "mac", "content",
        "metadata", F.coalesce("due", F.lit(-1)).alias("due"), F.coalesce("attempt", F.lit(-1)).alias("attempt"),
        topic.alias("topic"), place.alias("place"),
    )  # fmt: skip
    whole = ~F.col("shortened")
    destination = F.when(F.col("destination").isNotNull(), F.xxhash64("destination"))
    letters = dead_letters.where("shard is not null").select(
        "shard", F.col("first_offset").alias("offset"), F.col("first_row").alias("row"), "at",
        F.when(whole, destination).alias("topic"), F.when(whole, F.col("content")).alias("content"),
        F.when(whole, F.col("metadata")).alias("metadata"), F.xxhash64("reason").alias("reason"),
    )  # fmt: skip
    return reduce(
        DataFrame.unionByName,
        (
            _event(schedules, "sent", first),
            _event(answers, "answered", first),
            _event(imported.withColumn("topic", topic), "imported"),
            _event(changes, "changed"),
            _event(delivery_rows, "delivered"),
            _event(letters, "letter"),
        ),
    )


def messages(events: DataFrame) -> DataFrame:
    """`events` grouped by message. See `outcomes` for what the columns mean."""
    c = F.col

    def one(field: str) -> Column:
        return F.max(c(field))  # there is one event of this kind

    def either(*fields: str) -> Column:
        return F.max(F.coalesce(*(c(field) for field in fields)))

    def ends(kind: str, field: str, name: str) -> list[Column]:
        column = c(f"{kind}.{field}")
        return [F.min(column).alias(f"least_{name}"), F.max(column).alias(f"most_{name}")]

    counts = ("cancels", "buried", "redriven", "moves", "untrue", "claims", "doubtful", "failures", "exhausted",
              "wrong_deferrals")  # fmt: skip
    # Shuffled as they are: nearly every message has one event of a kind, so that to group them before would only make
    # wide rows of narrow ones.
    grouped = events.repartition(*MESSAGE).groupBy(*MESSAGE).agg(
        F.count("sent").alias("sent"),
        one("answered.answer").alias("answer"),
        F.count("imported").alias("imported"),
        F.coalesce(F.bool_or("imported.counted"), F.lit(False)).alias("counted"),
        either("sent.due", "imported.due").alias("first_due"),
        either("sent.at", "imported.at").alias("accepted_at"),
        either("sent.topic", "imported.topic").alias("topic_hash"),
        either("sent.content", "imported.content").alias("content"),
        either("sent.metadata", "imported.metadata").alias("metadata"),
        either("sent.expires", "imported.expires").alias("expires"),
        *(one(f"changed.{name}").alias(name) for name in (
            "place_due", "place_offset", "place_row", "asked", "asked_at", "shown", "unknown_at", "untrue_command",
            "expired_at", "least_reason", "most_reason",
        )),
        *(F.coalesce(one(f"changed.{name}"), F.lit(0)).alias(name) for name in counts),
        F.coalesce(F.bool_or("changed.is_dead"), F.lit(False)).alias("is_dead"),
        F.count("changed").alias("changed"),
        F.count("delivered").alias("records"),
        F.min("delivered.at").alias("delivered_at"), F.max("delivered.at").alias("most_delivered_at"),
        *ends("delivered", "topic", "topic"), *ends("delivered", "content", "content"),
        *ends("delivered", "metadata", "metadata"), *ends("delivered", "id_due", "id_due"),
        *ends("delivered", "mac", "mac"), *ends("delivered", "place", "place"), *ends("delivered", "due", "shown"),
        *ends("delivered", "attempt", "attempt"),
        F.count("letter").alias("letters"),
        F.max("letter.at").alias("letter_at"),
        *ends("letter", "topic", "letter_topic"), *ends("letter", "content", "letter_content"),
        *ends("letter", "metadata", "letter_metadata"), *ends("letter", "reason", "letter_reason"),
    )  # fmt: skip
    new = (c("sent") > 0) & (c("answer").isNull() | (c("answer") == int(Answer.ACCEPTED)))
    accepts = F.when(new | (c("imported") > 0), 1).otherwise(0)
    # Groups of commands that are no message: of changes, and of schedules that were refused.
    speaks = (c("accepts") > 0) | (c("records") > 0) | (c("letters") > 0) | (c("changed") > 0)
    return grouped.withColumn("accepts", accepts).where(speaks)


def outcomes(messages: DataFrame, windows: DataFrame, topics: DataFrame, anywhere_from: int | None = None) -> DataFrame:
    """`messages` with what should have become of them: `part` and `outcome`.

    `windows`: `window.as_frame`. `topics`: the topics that were read: `topic`, `topic_hash`, `known_from` (epoch ms:
    what was delivered there up to then may have been dropped). `anywhere_from`: the same for messages whose topic is
    not known; None where topics were left out.

    `part`: `range` (accepted in the range that is audited; the others are looked at, but not accounted), `earlier`,
    `later`, `direct` (without delay), `nowhere` (no shard has such messages).
    `outcome` is what the ledger says of a message of the range: delivered, cancelled, moved (on, and waiting), dead,
    pending; `lost`: delivered, and there is no record; `unproven`: delivered, and its record cannot be there any more,
    or its topic was not read, or it is known by its number and due in a window that has only begun. Of messages of no
    account: `none`. `key_due`, `key_offset`, `key_row`: the key it has, or left by. `asked`, `asked_at`: when it should
    be delivered by what was last said, and when that was said. `late`: ms from the later of these to its first record.
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
    key = F.struct("key_due", "key_offset", "key_row")
    passed = key <= F.struct("cursor_due", "cursor_offset", "cursor_row")
    vague = c("counted") & c("place_due").isNull() & ~passed & (c("first_due") - WINDOW_MS < c("cursor_due"))
    topic_from = F.coalesce("topic_from", F.when(c("topic_hash").isNull(), F.lit(anywhere_from).cast("bigint")))
    provable = F.greatest(c("key_due"), c("accepted_at")) > topic_from
    own = c("counted") | (c("least_id_due") == c("first_due")) | (c("most_id_due") == c("first_due"))
    outcome = (
        F.when((c("part") != "range") | (c("accepts") == 0), "none")
        .when(c("cancels") > 0, "cancelled")
        .when(c("is_dead"), "dead")
        .when(vague & (c("records") == 0), "unproven")
        .when(~passed & ~vague, F.when(c("moves") > 0, "moved").otherwise("pending"))
        .when((c("records") > 0) & own, "delivered")
        .when(F.coalesce(provable, F.lit(False)), "lost")
        .otherwise("unproven")
    )
    target_time = F.coalesce("asked", F.when(~c("counted"), c("first_due")), "least_shown")
    placed = joined.withColumns(
        {
            "key_due": F.coalesce("place_due", "first_due"),
            "key_offset": F.coalesce("place_offset", "offset"),
            "key_row": F.coalesce("place_row", "row"),
        }
    )
    return (
        placed.withColumn("part", part)
        .withColumns(
            {
                "outcome": outcome,
                "asked": target_time,
                "asked_at": F.coalesce("asked_at", "accepted_at"),
                "passed": passed,
            }
        )
        .withColumn("late", c("delivered_at") - F.greatest("asked", "asked_at"))
        .drop("began_at", "topic_from", "read_hash", "cursor_due", "cursor_offset", "cursor_row")
    )
