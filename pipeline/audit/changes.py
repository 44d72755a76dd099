"""What cancels, moves, deferrals and the like did to messages: one row for each message that any of them spoke of.

Whether a command took effect is what the ledger answered. The order of what happened to a message is that of the log:
commands by their offsets, and what an entry deferred after the last command it applied. With that order each answer is
decided once more (`decided`), by what the ledger had said before it.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from duemq.model.log.ledger import Answer
from duemq.model.messages.row_notes import MAX_TAGS
from duemq.pipeline.audit.window import standing

MESSAGE: Final = ("shard", "offset", "row")
"""What a message is known by: its shard, and offset and row of the command that made it."""

_CHANGES: Final = ("cancel", "move", "deliver_now", "redrive", "purge")
LONGEST_RETRY_MS: Final = 86_400_000
"""The longest pause between attempts, if the audit is not told another one: `delivery.retry_delays` is in no log."""
_ABOUT_A_MESSAGE: Final = (Answer.OK, Answer.DELIVERED, Answer.CANCELLED_BEFORE, Answer.DEAD, Answer.NOT_DEAD)


def answers(entries: DataFrame) -> DataFrame:
    """`shard`, `offset`, `answer` of each command that has one, and `n`: of the entry that gave it."""
    rows = entries.select("shard", "n", F.explode("answers").alias("one"))
    return rows.select("shard", "one.offset", "one.answer", "n")


def cycles(entries: DataFrame) -> DataFrame:
    """One row per entry that counts (`window.standing`): `shard`, `n`, `told_at` (when it was made), and what the one
    that it goes on from had said, null where that one is not there: `applied_before`, `cursor_before` (a struct),
    `horizon_before`, `end_horizon_before`."""
    before = Window.partitionBy("shard").orderBy("n")
    follows = F.lag("n").over(before) == F.coalesce("base", F.col("n") - 1)

    first = (F.col("n") == 0) | F.coalesce(F.col("base") == -1, F.lit(False))

    def earlier(column: str) -> Column:
        return F.when(first, F.lit(0)).when(follows, F.lag(column).over(before)).cast("bigint")

    columns = ("applied", "horizon", "end_horizon", "cursor_due", "cursor_offset", "cursor_row")
    sound = entries.where("problem is null").select("shard", "n", "ledger_offset", "base", "at", *columns)
    narrow = standing(sound).withColumnRenamed("at", "told_at")
    rows = narrow.withColumns({f"{name}_before": earlier(name) for name in columns})
    cursor = F.struct("cursor_due_before", "cursor_offset_before", "cursor_row_before")
    return rows.select(
        "shard", "n", "told_at", "applied_before", "horizon_before", "end_horizon_before",
        F.when(F.col("applied_before").isNotNull(), cursor).alias("cursor_before"),
    )  # fmt: skip


def changes(commands: DataFrame, answers: DataFrame) -> DataFrame:
    """Cancels, moves, deliver-nows and redrives: `shard`, `at`, `command` (its offset), `kind`, `answer`, `n` (of the
    entry with the answer), `plain`, `by_id`, `tag`, `due`, and the message, `first_due`, `offset` and `row`: null where
    it was named by a name that nothing in the range has."""
    change_rows = commands.where(F.col("kind").isin(*_CHANGES)).join(answers, ["shard", "offset"])
    by_id = change_rows.where("first_offset is not null").select(
        "shard", "at", F.col("offset").alias("command"), "kind", "answer", "n", "plain", F.lit(True).alias("by_id"),
        "tag", "due", "first_due", F.col("first_offset").alias("offset"), F.col("first_row").alias("row"),
    )  # fmt: skip
    named = change_rows.where("first_offset is null and name is not null")
    spoken_of = commands.where("kind = 'schedule' and name is not null").join(
        F.broadcast(named.select("shard", "name").distinct()), ["shard", "name"], "left_semi"
    )
    holders = spoken_of.join(answers, ["shard", "offset"]).where(F.col("answer") == int(Answer.ACCEPTED))
    columns = ["shard", "name", "offset", "at", "due", "kind", "answer", "n", "plain", "tag"]
    both = holders.withColumn("kind", F.lit(None).cast("string")).select(*columns).unionByName(named.select(*columns))
    # A name belongs to the last message that was accepted under it: it may be taken again once it is forgotten.
    before = Window.partitionBy("shard", "name").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    holder = F.last(F.when(F.col("kind").isNull(), F.struct("due", "offset")), ignorenulls=True).over(before)
    by_name = both.withColumn("holder", holder).where("kind is not null").select(
        "shard", "at", F.col("offset").alias("command"), "kind", "answer", "n", "plain", F.lit(False).alias("by_id"),
        "tag", "due", F.col("holder.due").alias("first_due"), F.col("holder.offset").alias("offset"),
        F.when(F.col("holder").isNotNull(), F.lit(0)).cast("bigint").alias("row"),
    )  # fmt: skip
    return by_id.unionByName(by_name)


def deferrals(entries: DataFrame, changes: DataFrame) -> DataFrame:
    """What entries moved to a later time or to the dead letters: `shard`, `offset`, `row` of the message, `position`
    and `n`, `told_at`, `to_due`, `to_offset`, `to_row`, `attempt`, `reason`, and `cursor_due` of the entry.

    The key of a message holds the offset of the command that placed it last: its own, or that of a move.
    """
    rows = entries.select("shard", "applied", "n", "at", "cursor_due", F.explode("deferred").alias("one")).select(
        "shard", (F.col("applied") - 1).alias("position"), "n", F.col("at").alias("told_at"),
        F.col("one.offset").alias("key_offset"), F.col("one.row").alias("key_row"), "one.to_due", "one.to_offset",
        "one.to_row", "one.attempt", "one.reason", "cursor_due",
    )  # fmt: skip
    placed = changes.where((F.col("answer") == int(Answer.OK)) & ~F.col("kind").isin("cancel", "purge")).select(
        "shard", F.col("command").alias("key_offset"), "offset", "row"
    )
    return rows.join(placed, ["shard", "key_offset"], "left").select(
        "shard", F.coalesce("offset", "key_offset").alias("offset"), F.coalesce("row", "key_row").alias("row"),
        "position", "n", "told_at", "to_due", "to_offset", "to_row", "attempt", "reason", "cursor_due",
    )  # fmt: skip


def decided(
    changes: DataFrame, deferrals: DataFrame, cycles: DataFrame, longest_retry_ms: int = LONGEST_RETRY_MS
) -> DataFrame:
    """All that happened to messages, in order (`position`, `turn`), and of each change what its answer should have been
    for a message that exists: `right` (an `Answer`), and `forgotten` (then *unknown* is as good). Both null where the
    entry before the answer's is not there, and of what is no answer.

    `happened`: cancel, move, deliver_now, redrive, defer or dead. `due`, `to_offset`, `to_row`: the key it placed the
    message under. `told_at`: when the entry was made that says so. `exhausted`: an answer EXHAUSTED that no redrive
    explains: its expiry has to. `wrong_deferral`: see `KINDS`. `command`, `plain`, `by_id`, `answer`, `attempt`,
    `reason` (of a deferral or death).
    """
    ok = F.col("answer") == int(Answer.OK)
    change_events = changes.where("offset is not null").join(cycles, ["shard", "n"], "left").select(
        *MESSAGE, F.col("command").alias("position"), F.lit(-1).cast("bigint").alias("turn"), "at", "told_at",
        F.col("kind").alias("happened"), "answer", "due", F.when(ok, F.col("command")).alias("to_offset"),
        F.lit(0).cast("bigint").alias("to_row"), F.lit(None).cast("int").alias("attempt"), "command", "plain", "by_id",
        "tag", "first_due", "applied_before", "cursor_before", "horizon_before", "end_horizon_before",
    )  # fmt: skip
    deferral_events = deferrals.select(
        *MESSAGE, "position", F.col("n").alias("turn"), "told_at",
        F.when(F.col("to_due").isNull(), "dead").otherwise("defer").alias("happened"),
        F.lit(int(Answer.OK)).alias("answer"), F.col("to_due").alias("due"), "to_offset", "to_row", "attempt",
        "reason", "cursor_due",
    )  # fmt: skip
    all_ = change_events.unionByName(deferral_events, allowMissingColumns=True)
    happened = F.col("happened")
    places = ok & happened.isin("move", "deliver_now", "redrive", "defer")
    ends = F.when(ok & (happened == "cancel"), "cancelled").when(happened == "dead", "dead")
    deferred, redriven = happened.isin("defer", "dead"), ok & (happened == "redrive")
    before = Window.partitionBy(*MESSAGE).orderBy("position", "turn").rowsBetween(Window.unboundedPreceding, -1)

    def last(value: Column, where: Column) -> Column:
        return F.last(F.when(where, value), ignorenulls=True).over(before)

    with_state = all_.withColumns({
        "_state": last(F.coalesce(ends, F.lit("waiting")), places | ends.isNotNull()),
        "_ended_at": last(F.col("told_at"), ends.isNotNull()),
        "_placed": last(
            F.struct("due", F.col("to_offset").alias("offset"), F.col("to_row").alias("row"), "position"), places
        ),
        "_failures": F.coalesce(last(F.coalesce("attempt", F.lit(0)), deferred | redriven), F.lit(0)),
        "_redrives": F.count_if(redriven).over(before),
        "_purged": F.count_if(ok & (happened == "purge")).over(before) > 0,
        "_tags": F.collect_set(F.when(ok, F.col("tag"))).over(before),
    })  # fmt: skip
    first = F.struct(F.col("first_due").alias("due"), F.col("offset"), F.col("row"), F.col("offset").alias("position"))
    placed = with_state.withColumn("_placed", F.coalesce("_placed", first))
    key = F.struct("_placed.due", "_placed.offset", "_placed.row")
    # What a cycle places is pending in it, even where it is due already.
    delivered = (key <= F.col("cursor_before")) & (F.col("_placed.position") < F.col("applied_before"))
    ended = F.coalesce(F.col("_state").isin("cancelled", "dead"), F.lit(False))
    right = (
        F.when(F.col("cursor_before").isNull() | deferred | _by_terms(), None)
        .when(F.col("_state") == "cancelled", int(Answer.CANCELLED_BEFORE))
        .when((F.col("_state") == "dead") & happened.isin("redrive", "purge") & F.col("_purged"), int(Answer.PURGED))
        .when((F.col("_state") == "dead") & happened.isin("redrive", "purge"), int(Answer.OK))
        .when(F.col("_state") == "dead", int(Answer.DEAD))
        .when(delivered, int(Answer.DELIVERED))
        .when(happened.isin("redrive", "purge"), int(Answer.NOT_DEAD))
        .otherwise(int(Answer.OK))
    )
    # A message that was due before the window the cursor was in got a later key, and may be remembered longer than this
    # says: so that a right answer is right although it might be forgotten.
    forgotten = ((F.col("_placed.due") < F.col("horizon_before")) & (ended | delivered)) | (
        ended & (F.col("_ended_at") < F.col("end_horizon_before"))
    )
    # A node whose clock went back puts a message right behind the cursor.
    latest = F.greatest(F.col("told_at") + longest_retry_ms, F.col("cursor_due") + 1)
    tries = F.col("attempt") - F.col("_failures")
    wrong_deferral = deferred & (~tries.between(0, 1) | F.coalesce(F.col("due") > latest, F.lit(False)))
    exhausted = (F.col("answer") == int(Answer.EXHAUSTED)) & (F.col("_redrives") == 0)
    judged = placed.withColumns(
        {"right": right, "forgotten": forgotten, "wrong_deferral": wrong_deferral, "exhausted": exhausted}
    )
    return judged.drop("_state", "_ended_at", "_placed", "_failures", "_redrives", "_purged", "_tags", "cursor_due",
                       "applied_before", "cursor_before", "horizon_before", "end_horizon_before")  # fmt: skip


def _by_terms() -> Column:
    """Whether an answer follows from the terms of a change (`model/messages/message.py`), and what was changed before
    explains it: REPEATED and CHANGED_BEFORE by tags, if a row has them. EXHAUSTED is not judged here."""
    c = F.col
    job = F.split_part("tag", F.lit("/"), F.lit(1))
    of_job = F.exists("_tags", lambda one: (one != c("tag")) & (F.split_part(one, F.lit("/"), F.lit(1)) == job))
    by_another_step = c("tag").isNotNull() & (of_job | (F.size("_tags") >= MAX_TAGS))
    explained = (
        F.when(c("answer") == int(Answer.REPEATED), F.array_contains("_tags", c("tag")))
        .when(c("answer") == int(Answer.CHANGED_BEFORE), by_another_step)
        .when(c("answer") == int(Answer.PURGED), c("_purged"))
        .otherwise(c("answer") == int(Answer.EXHAUSTED))
    )
    return F.coalesce(explained, F.lit(False))


def summary(decided: DataFrame) -> DataFrame:
    """One row per message: `place_due`, `place_offset`, `place_row` (its key after all of it; null where it kept its
    first one), `asked` (when it was last asked to be delivered, null as before) and `asked_at` (when that was said),
    `shown` (the due time that a record shows; null for the first one), `failures` (attempts that failed before the next
    delivery), `cancels` that won, `buried`, `redriven` (how often), `is_dead`, `ended_at` (when the entry was made that
    ended it last), `moves`;

    and of the answers: `untrue` (how many are not what they should be), `unknown_at` (when it was last called unknown
    wrongly, which is right before a file's messages are there), `claims` (how many speak of a message that exists),
    `untrue_command` (the first of them), `doubtful` (plain clients' ids that were called unknown: whether they were
    genuine cannot be known), `exhausted`, `wrong_deferrals`;

    of deaths: `expired_at` (when it was first called expired), `least_reason`, `most_reason` (xxhash64)."""
    c, happened = F.col, F.col("happened")
    ok, died = c("answer") == int(Answer.OK), happened == "dead"
    order = F.struct("position", "turn")
    commanded = ok & happened.isin("move", "deliver_now", "redrive")
    placing = commanded | (happened == "defer")
    ending = (ok & (happened == "cancel")) | (happened == "dead")
    unknown = c("answer") == int(Answer.UNKNOWN)
    claims = happened.isin(*_CHANGES) & c("answer").isin(*map(int, _ABOUT_A_MESSAGE))
    wrong = c("right").isNotNull() & (c("answer") != c("right")) & (c("answer") != int(Answer.MALFORMED))
    doubtful = unknown & c("plain") & c("by_id")
    untrue = F.coalesce(wrong & ~unknown, F.lit(False))
    wrongly_unknown = F.coalesce(wrong & unknown & ~c("forgotten") & ~doubtful, F.lit(False))

    def last(value: Column | str, where: Column) -> Column:
        of = F.col(value) if isinstance(value, str) else value
        return F.max_by(F.when(where, of), F.when(where, order))

    failures = F.when(happened == "redrive", F.lit(0)).otherwise(c("attempt"))
    return decided.groupBy(*MESSAGE).agg(
        last("due", placing).alias("place_due"),
        last("to_offset", placing).alias("place_offset"),
        last("to_row", placing).alias("place_row"),
        last("due", commanded).alias("asked"),
        last("at", commanded).alias("asked_at"),
        last("due", ok & (happened == "move")).alias("shown"),
        F.coalesce(last(failures, (happened == "defer") | (ok & (happened == "redrive"))), F.lit(0)).alias("failures"),
        F.count_if(ok & (happened == "cancel")).alias("cancels"),
        F.count_if(happened == "dead").alias("buried"),
        F.count_if(ok & (happened == "redrive")).alias("redriven"),
        F.coalesce(last("happened", placing | (happened == "dead")) == "dead", F.lit(False)).alias("is_dead"),
        last("told_at", ending).alias("ended_at"),
        F.count_if(commanded & (happened == "move")).alias("moves"),
        F.count_if(untrue).alias("untrue"),
        F.max(F.when(wrongly_unknown, c("told_at"))).alias("unknown_at"),
        F.count_if(claims).alias("claims"),
        F.min(F.when(untrue | wrongly_unknown | claims | c("exhausted"), c("command"))).alias("untrue_command"),
        F.count_if(doubtful).alias("doubtful"),
        F.count_if("exhausted").alias("exhausted"),
        F.count_if("wrong_deferral").alias("wrong_deferrals"),
        F.min(F.when(died & (c("reason") == "expired"), c("told_at"))).alias("expired_at"),
        F.min(F.when(died, F.xxhash64("reason"))).alias("least_reason"),
        F.max(F.when(died, F.xxhash64("reason"))).alias("most_reason"),
    )  # fmt: skip
