"""Dead letters of records that were malformed. They have no id: only the offset of the record, not its partition."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duemq.model.ledger import Answer
from duemq.pipeline.audit.violations import listed

RULES: dict[str, str] = {
    "lost_letter": "letters < refused AND of_content < refused_content AND at > :letters_from",
    "altered_letter": "letters >= refused AND of_content < refused_content AND shortened = 0 AND at > :letters_from",
    "stray_letter": "letters > refused AND all_whole",
}
"""Of an offset and a payload that was refused there."""


def comparison(commands: DataFrame, answers: DataFrame, dead_letters: DataFrame, windows: DataFrame) -> DataFrame:
    """The commands that the ledger called malformed beside the dead letters of such ones, by offset and payload:
    `shard`, `offset`, `at`, `refused` and `letters` (of this offset, of all shards), `refused_content` and `of_content`
    (with this payload), `shortened` (letters that have lost it), `all_whole` (whether all that was ever sent is read).
    """
    refused = commands.join(
        answers.where(F.col("answer") == int(Answer.MALFORMED)).select("shard", "offset"), ["shard", "offset"]
    )
    by_content = refused.groupBy("offset", "content").agg(
        F.min("shard").alias("shard"), F.max("at").alias("at"), F.count("*").alias("refused_content")
    )
    by_offset = refused.groupBy("offset").agg(F.count("*").alias("refused"))
    letters = dead_letters.where("command IS NOT NULL AND reason = 'malformed'").select(
        F.col("command").alias("offset"), "content", "shortened", F.col("at").alias("letter_at")
    )
    of_content = letters.groupBy("offset", "content").agg(F.count("*").alias("of_content"))
    of_offset = letters.groupBy("offset").agg(
        F.count("*").alias("letters"), F.count_if("shortened").alias("shortened"), F.max("letter_at").alias("letter_at")
    )
    whole = windows.agg(F.bool_and("whole").alias("all_whole"), F.max("ended_at").alias("ended_at"))
    sent = by_content.join(by_offset, "offset").join(of_content, ["offset", "content"], "left")
    both = sent.join(of_offset, "offset", "full").crossJoin(F.broadcast(whole))
    counts = {name: F.coalesce(name, F.lit(0)) for name in
              ("refused", "letters", "refused_content", "of_content", "shortened")}  # fmt: skip
    timely = F.col("all_whole") & F.coalesce(F.col("letter_at") < F.col("ended_at"), F.lit(True))
    return both.withColumns(counts).withColumn("all_whole", timely)


def violations(comparison: DataFrame, letters_from: int | None) -> DataFrame:
    """Rows of `VIOLATIONS`. `letters_from`: see `violations.judged`."""
    if letters_from is None:
        return listed(comparison.where("false"), "lost_letter", "")
    lost, altered, stray = (
        comparison.where(RULES[kind].replace(":letters_from", str(letters_from)))
        for kind in ("lost_letter", "altered_letter", "stray_letter")
    )
    one = stray.groupBy("offset").agg(F.min("shard").alias("shard"), F.max("letters").alias("letters"))
    many = F.concat("letters", F.lit(" dead letters speak of offset "), "offset", F.lit(" of the buffer"))
    return (
        listed(lost, "lost_letter", "a record that was malformed, and no dead letter speaks of its offset")
        .unionByName(listed(altered, "altered_letter", "of a record that was malformed, with another payload"))
        .unionByName(listed(one, "stray_letter", many))
    )
