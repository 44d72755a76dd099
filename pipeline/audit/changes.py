"""What cancels, moves, deferrals and the like did to messages: one row for each message that any of them spoke of.

Whether a command took effect is what the ledger answered. The order of what happened to a message is that of the log:
commands by their offsets, and what an entry deferred after the last command it applied.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from duemq.model.ledger import Answer

MESSAGE: Final = ("shard", "offset", "row")
"""What a message is known by: its shard, and offset and row of the command that made it."""

_CHANGES: Final = ("cancel", "move", "deliver_now", "redrive")


def answers(entries: DataFrame) -> DataFrame:
    """`shard`, `offset`, `answer` of each command that has one."""
    return entries.select("shard", F.explode("answers").alias("one")).select("shard", "one.offset", "one.answer")


def changes(commands: DataFrame, answers: DataFrame) -> DataFrame:
    """Cancels, moves, deliver-nows and redrives: `shard`, `at`, `command` (its offset), `kind`, `answer`, `due`, and
    the message, `offset` and `row`: null where it was named by a name that nothing in the range has."""
    said = commands.where(F.col("kind").isin(*_CHANGES)).join(answers, ["shard", "offset"])
    by_id = said.where("first_offset is not null").select(
        "shard", "at", F.col("offset").alias("command"), "kind", "answer", "due", F.col("first_offset").alias("offset"),
        F.col("first_row").alias("row"),
    )  # fmt: skip
    named = said.where("first_offset is null and name is not null")
    spoken_of = commands.where("kind = 'schedule' and name is not null").join(
        F.broadcast(named.select("shard", "name").distinct()), ["shard", "name"], "left_semi"
    )
    holders = spoken_of.join(answers, ["shard", "offset"]).where(F.col("answer") == int(Answer.ACCEPTED))
    both = holders.select("shard", "name", "offset", "at", "due", F.lit(None).cast("string").alias("kind"), "answer")
    both = both.unionByName(named.select("shard", "name", "offset", "at", "due", "kind", "answer"))
    # A name belongs to the last message that was accepted under it: it may be taken again once it is forgotten.
    before = Window.partitionBy("shard", "name").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    holder = F.last(F.when(F.col("kind").isNull(), F.col("offset")), ignorenulls=True).over(before)
    by_name = both.withColumn("holder", holder).where("kind is not null").select(
        "shard", "at", F.col("offset").alias("command"), "kind", "answer", "due", F.col("holder").alias("offset"),
        F.when(F.col("holder").isNotNull(), F.lit(0)).cast("bigint").alias("row"),
    )  # fmt: skip
    return by_id.unionByName(by_name)


def deferrals(entries: DataFrame, changes: DataFrame) -> DataFrame:
    """What entries moved to a later time or to the dead letters: `shard`, `offset`, `row` of the message, `position`
    and `n`, `to_due`, `to_offset`, `to_row`, `reason`.

    The key of a message holds the offset of the command that placed it last: its own, or that of a move.
    """
    said = entries.select("shard", "applied", "n", F.explode("deferred").alias("one")).select(
        "shard", (F.col("applied") - 1).alias("position"), "n", F.col("one.offset").alias("key_offset"),
        F.col("one.row").alias("key_row"), "one.to_due", "one.to_offset", "one.to_row", "one.reason",
    )  # fmt: skip
    placed = changes.where((F.col("answer") == int(Answer.OK)) & (F.col("kind") != "cancel")).select(
        "shard", F.col("command").alias("key_offset"), "offset", "row"
    )
    return said.join(placed, ["shard", "key_offset"], "left").select(
        "shard", F.coalesce("offset", "key_offset").alias("offset"), F.coalesce("row", "key_row").alias("row"),
        "position", "n", "to_due", "to_offset", "to_row", "reason",
    )  # fmt: skip


def summary(changes: DataFrame, deferrals: DataFrame) -> DataFrame:
    """One row per message: `due`, `place_offset`, `place_row` (its key after all of it; null where it kept its first
    one), `asked` (when it was last asked to be delivered, null as before) and `asked_at` (when that was said),
    `cancels` that won, `buried`, `redriven` (how often), `is_dead`, `moves`, and how often it was called
    delivered (`told_delivered`), cancelled before (`told_cancelled`) and dead (`told_dead`)."""
    ok = F.col("answer") == int(Answer.OK)
    done = changes.where("offset is not null").select(
        *MESSAGE, F.col("command").alias("position"), F.lit(-1).cast("bigint").alias("n"), "at", "kind", "answer",
        "due", F.when(ok & (F.col("kind") != "cancel"), F.col("command")).alias("to_offset"),
        F.lit(0).cast("bigint").alias("to_row"),
    )  # fmt: skip
    put_off = deferrals.select(
        *MESSAGE, "position", "n", F.lit(None).cast("bigint").alias("at"),
        F.when(F.col("to_due").isNull(), "dead").otherwise("defer").alias("kind"),
        F.lit(int(Answer.OK)).alias("answer"), F.col("to_due").alias("due"), "to_offset", "to_row",
    )  # fmt: skip
    kind, order = F.col("kind"), F.struct("position", "n")
    commanded = ok & kind.isin("move", "deliver_now", "redrive")
    placing = commanded | (kind == "defer")

    def last(value: str, where: Column) -> Column:
        return F.max_by(F.when(where, F.col(value)), F.when(where, order))

    def times(where: Column) -> Column:
        return F.count_if(where)

    return done.unionByName(put_off).groupBy(*MESSAGE).agg(
        last("due", placing).alias("due"),
        last("to_offset", placing).alias("place_offset"),
        last("to_row", placing).alias("place_row"),
        last("due", commanded).alias("asked"),
        last("at", commanded).alias("asked_at"),
        times(ok & (kind == "cancel")).alias("cancels"),
        times(kind == "dead").alias("buried"),
        times(ok & (kind == "redrive")).alias("redriven"),
        F.coalesce(last("kind", placing | (kind == "dead")) == "dead", F.lit(False)).alias("is_dead"),
        times(F.col("answer") == int(Answer.DELIVERED)).alias("told_delivered"),
        times(F.col("answer") == int(Answer.CANCELLED_BEFORE)).alias("told_cancelled"),
        times(F.col("answer") == int(Answer.DEAD)).alias("told_dead"),
        times(commanded & (kind == "move")).alias("moves"),
    )  # fmt: skip
