"""Dead letters of records that were malformed. They have no id: they tell partition and offset of the record.

Those of earlier servers tell the offset alone. They are compared with the records that no other letter speaks of, by
offset and payload: one of another shard may be meant, and more cannot be known.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duemq.model.log.ledger import Answer
from duemq.pipeline.audit.violations import listed

RULES: dict[str, str] = {
    "lost_letter": "letters < refused AND of_content < refused_content AND at > :letters_from",
    "altered_letter": "letters >= refused AND of_content < refused_content AND shortened = 0 AND at > :letters_from",
    "stray_letter": "letters > refused AND all_whole",
}
"""Of a place and a payload that was refused there."""


def comparison(commands: DataFrame, answers: DataFrame, dead_letters: DataFrame, windows: DataFrame) -> DataFrame:
    """The commands that the ledger called malformed beside the dead letters of such ones: `shard`, `offset`, `at`,
    `refused` and `letters` (of this place), `refused_content` and `of_content` (with this payload), `shortened`
    (letters that have lost it), `all_whole` (whether all that was ever sent there is read), `exact` (whether the place
    is a shard's; else it is an offset of all shards that have no letter of their own).
    """
    refused = commands.join(
        answers.where(F.col("answer") == int(Answer.MALFORMED)).select("shard", "offset"), ["shard", "offset"]
    ).select("shard", "offset", "at", F.col("content").alias("sent"))
    letters = dead_letters.where("command IS NOT NULL AND reason = 'malformed'").select(
        F.col("command_shard").alias("shard"), F.col("command").alias("offset"), "content", "shortened",
        F.col("at").alias("letter_at"),
    )  # fmt: skip
    own = letters.where("shard IS NOT NULL")
    open_ = refused.join(own.select("shard", "offset").distinct(), ["shard", "offset"], "left_anti")
    others = letters.where("shard IS NULL").drop("shard")
    return _by_place(refused, own, windows).unionByName(_by_offset(open_, others, windows))


def _by_place(refused: DataFrame, letters: DataFrame, windows: DataFrame) -> DataFrame:
    """Of letters that tell their shard."""
    spoken_of = letters.join(refused, ["shard", "offset"], "left").groupBy("shard", "offset").agg(
        F.max("at").alias("at"), F.count("*").alias("letters"), F.count_if("shortened").alias("shortened"),
        F.max(F.when(F.col("at").isNotNull(), 1).otherwise(0)).alias("refused"),
        F.count_if(F.col("content") == F.col("sent")).alias("of_content"), F.max("letter_at").alias("letter_at"),
    )  # fmt: skip
    both = spoken_of.join(F.broadcast(windows.select("shard", "whole", "ended_at")), "shard", "left")
    # There is no command at all in a shard that there is not.
    return _compared(both.withColumn("refused_content", F.col("refused")), F.coalesce("whole", F.lit(True)), exact=True)


def _by_offset(refused: DataFrame, letters: DataFrame, windows: DataFrame) -> DataFrame:
    by_content = refused.groupBy("offset", F.col("sent").alias("content")).agg(
        F.min("shard").alias("shard"), F.max("at").alias("at"), F.count("*").alias("refused_content")
    )
    by_offset = refused.groupBy("offset").agg(F.count("*").alias("refused"))
    of_content = letters.groupBy("offset", "content").agg(F.count("*").alias("of_content"))
    of_offset = letters.groupBy("offset").agg(
        F.count("*").alias("letters"), F.count_if("shortened").alias("shortened"), F.max("letter_at").alias("letter_at")
    )
    whole = windows.agg(F.bool_and("whole").alias("whole"), F.max("ended_at").alias("ended_at"))
    sent = by_content.join(by_offset, "offset").join(of_content, ["offset", "content"], "left")
    both = sent.join(of_offset, "offset", "full").crossJoin(F.broadcast(whole))
    return _compared(both, F.col("whole"), exact=False)


def _compared(both: DataFrame, whole: Column, *, exact: bool) -> DataFrame:
    counts = [
        F.coalesce(name, F.lit(0)).cast("bigint").alias(name)
        for name in ("refused", "letters", "refused_content", "of_content", "shortened")
    ]
    timely = whole & F.coalesce(F.col("letter_at") < F.col("ended_at"), F.lit(True))
    return both.select("shard", "offset", "at", *counts, timely.alias("all_whole"), F.lit(exact).alias("exact"))


def violations(comparison: DataFrame, letters_from: int | None) -> DataFrame:
    """Rows of `VIOLATIONS`. `letters_from`: see `violations.judged`."""
    if letters_from is None:
        return listed(comparison.where("false"), "lost_letter", "")
    lost, altered, stray = (
        comparison.where(RULES[kind].replace(":letters_from", str(letters_from)))
        for kind in ("lost_letter", "altered_letter", "stray_letter")
    )
    place = F.when(F.col("exact"), F.col("shard")).alias("place")
    one = stray.groupBy("offset", place).agg(F.min("shard").alias("shard"), F.max("letters").alias("letters"))
    of_shard = F.when(F.col("place").isNotNull(), F.concat(F.lit(" in partition "), "place")).otherwise("")
    many = F.concat("letters", F.lit(" dead letters speak of offset "), "offset", F.lit(" of the buffer"), of_shard)
    return (
        listed(lost, "lost_letter", "a record that was malformed, and no dead letter speaks of it")
        .unionByName(listed(altered, "altered_letter", "of a record that was malformed, with another payload"))
        .unionByName(listed(one, "stray_letter", many))
    )
