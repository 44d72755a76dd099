"""Makes the rows of the history from the frames in `pipeline/logs/logs.py`. Times are epoch ms in `bigint` columns.

A message is identified by its first key, which is part of its id: shard, first_due_ms, first_offset, first_row. Only
delivered records have the id itself; the ledger has keys.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duemq.model.log.ledger import Answer
from duemq.pipeline.logs.logs import DEAD_LETTERS, LEDGER, header, with_id

MESSAGE: Final = "shard int, first_due_ms bigint, first_offset bigint, first_row bigint"
DELIVERIES: Final = (
    f"id string, {MESSAGE}, key binary, due_ms bigint, delivered_ms bigint, lateness_ms bigint, attempt int, "
    "partition int, offset bigint, date date, topic string"
)
OUTCOMES: Final = (
    f"at_ms bigint, id string, {MESSAGE}, name string, topic string, due_ms bigint, attempt int, reason string, "
    "command bigint, answer string, messages bigint, partition int, offset bigint, date date, outcome string"
)
_DAY_MS: Final = 86_400_000
_WON: Final = {"cancel": "cancelled", "move": "moved", "deliver_now": "sent_now", "redrive": "redriven"}
# These answers are not outcomes: messages were accepted, or the dead letters and imports have the details.
_NO_OUTCOME: Final = (Answer.ACCEPTED, Answer.MALFORMED, Answer.FILE_PENDING, Answer.FILE_DUPLICATE)


def delivered(records: DataFrame, dead_letters: str = DEAD_LETTERS) -> DataFrame:
    """The deliveries among records from any topics, as `DELIVERIES`: records with a header duemq-id, except those in
    the topic `dead_letters`."""
    delivered_ms = F.unix_millis("timestamp")
    named = (
        records.where(~F.col("topic").isin(LEDGER, dead_letters))
        .withColumn("id", header("duemq-id"))
        .where("id is not null")
    )
    return (
        with_id(named)
        .withColumn("due_ms", header("duemq-due").cast("string").try_cast("bigint"))
        .select(
            "id", "shard", F.col("first_due").alias("first_due_ms"), "first_offset", "first_row", "key", "due_ms",
            delivered_ms.alias("delivered_ms"), (delivered_ms - F.col("due_ms")).alias("lateness_ms"),
            header("duemq-attempt").cast("string").try_cast("int").alias("attempt"),
            "partition", "offset", _date(delivered_ms), "topic",
        )
    )  # fmt: skip


def answered(entries: DataFrame) -> DataFrame:
    """The ledger's answers about messages: shard, command (its offset), answer, at_ms, ledger_offset."""
    each = entries.select("shard", "at", "ledger_offset", F.explode("answers").alias("one"))
    return each.where(~F.col("one.answer").isin([int(one) for one in _NO_OUTCOME])).select(
        "shard", F.col("one.offset").alias("command"), F.col("one.answer").alias("answer"),
        F.col("at").alias("at_ms"), "ledger_offset",
    )  # fmt: skip


def summary(entries: DataFrame) -> DataFrame:
    """A summary of entries (`logs.entries`) per shard: answers (their number, as in `answered`), first and last (the
    offsets of answered commands), imported (number of files), wrong (number of records that are not entries), wrong_at
    and problem (the first such record)."""
    answers = F.filter("answers", lambda one: ~one["answer"].isin([int(answer) for answer in _NO_OUTCOME]))
    commands = F.transform(answers, lambda one: one["offset"])
    wrong = F.col("problem").isNotNull()
    return (
        entries.withColumn("commands", F.when(~wrong, commands))
        .groupBy("shard")
        .agg(
            F.coalesce(F.sum(F.size("commands")), F.lit(0)).alias("answers"),
            F.min(F.array_min("commands")).alias("first"),
            F.max(F.array_max("commands")).alias("last"),
            F.coalesce(F.sum(F.when(~wrong, F.size("imported"))), F.lit(0)).alias("imported"),
            F.count_if(wrong).alias("wrong"),
            F.min(F.when(wrong, F.col("ledger_offset"))).alias("wrong_at"),
            F.min_by("problem", F.when(wrong, F.col("ledger_offset"))).alias("problem"),
        )
    )


def changed(answers: DataFrame, commands: DataFrame) -> DataFrame:
    """The outcomes of answered `commands` (`logs.commands`), as `OUTCOMES`.

    The outcome of a change that succeeded is cancelled, moved, sent_now or redriven. If the change came too late or its
    message does not exist, the outcome is too_late, with the answer. If the name was used before, it is duplicate or
    conflict. If the command is no longer in the buffer topic, it is unknown_command.
    """
    command_rows = commands.select(
        "shard", F.col("offset").alias("command"), "kind", "name", "topic", F.col("due").alias("due_ms"),
        F.col("first_due").alias("first_due_ms"), "first_offset", "first_row",
    )  # fmt: skip
    rows = answers.join(command_rows, ["shard", "command"], "left")
    won = F.create_map(*[F.lit(text) for pair in _WON.items() for text in pair])
    names = F.create_map(*[part for one in Answer for part in (F.lit(int(one)), F.lit(one.name.lower()))])
    outcome = (
        F.when(F.col("kind").isNull(), F.lit("unknown_command"))
        .when(F.col("answer") == int(Answer.DUPLICATE), F.lit("duplicate"))
        .when(F.col("answer") == int(Answer.CONFLICT), F.lit("conflict"))
        .when(F.col("answer") == int(Answer.OK), F.coalesce(won[F.col("kind")], F.col("kind")))
        .otherwise(F.lit("too_late"))
    )
    return _outcomes(
        rows.withColumn("outcome", outcome)
        .withColumn("answer", names[F.col("answer")])
        .withColumns({"partition": F.col("shard"), "offset": F.col("ledger_offset"), "messages": F.lit(1)})
    )


def died(dead_letters: DataFrame) -> DataFrame:
    """The outcomes of dead letters, as `OUTCOMES`: dead, or malformed if the record was never a message."""
    return _outcomes(
        dead_letters.select(
            F.col("at").alias("at_ms"), "id", "shard", F.col("first_due").alias("first_due_ms"), "first_offset",
            "first_row", F.col("destination").alias("topic"), F.col("due").alias("due_ms"), "attempt",
            "reason", "command",
            F.lit(1).alias("messages"), "partition", "offset",
            F.when(F.col("id").isNull(), F.lit("malformed")).otherwise(F.lit("dead")).alias("outcome"),
        )
    )  # fmt: skip


def imported(entries: DataFrame) -> DataFrame:
    """Imported and refused files, as `OUTCOMES`; `messages`: the number in the file, `command`: the file's command."""
    each = entries.select("shard", "at", "ledger_offset", F.explode("imported").alias("one"))
    return _outcomes(
        each.select(
            F.col("at").alias("at_ms"), "shard", F.col("one.offset").alias("command"),
            F.col("one.rows").alias("messages"), F.nullif("one.reason", F.lit("")).alias("reason"),
            F.col("shard").alias("partition"), F.col("ledger_offset").alias("offset"),
            F.when(F.col("one.reason") == "", F.lit("imported")).otherwise(F.lit("file_refused")).alias("outcome"),
        )
    )  # fmt: skip


def _outcomes(rows: DataFrame) -> DataFrame:
    """The rows with all columns of `OUTCOMES`; columns that they do not have are null."""
    rows = rows.withColumn("date", _date(F.col("at_ms")))
    fields = [field.split() for field in OUTCOMES.split(", ")]
    return rows.select(
        *((F.col(name) if name in rows.columns else F.lit(None)).cast(type_).alias(name) for name, type_ in fields)
    )


def _date(ms: Column) -> Column:
    """The day in UTC. A cast from a timestamp would give the day in the session's zone."""
    days = F.call_function("div", ms - F.pmod(ms, F.lit(_DAY_MS)), F.lit(_DAY_MS))
    return F.date_from_unix_date(days.cast("int")).alias("date")
