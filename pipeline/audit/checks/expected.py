"""Ids that senders hold: whether each is that of a message that the logs know.

What a server has answered is in no log. Who keeps the ids that were given out (the table of ids of bulk schedule, a
column of one's own) can ask for them: an id that is in no log is a message that was accepted and is not there.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duemq.model.log.ledger import Answer
from duemq.model.messages.ids import DIRECT
from duemq.pipeline.audit.violations import listed
from duemq.pipeline.errors import BadInput
from duemq.pipeline.logs import logs

COLUMN: Final = "id"
RULES: dict[str, str] = {
    "there": "known AND NOT (due <> first_due OR mac <> seen_mac)",
    "unprovable": "NOT known AND ((shard <> :direct AND offset < known_from) "
    "OR (shard <> :direct AND offset >= read_to AND offset < buffer_end) "
    "OR (shard = :direct AND NOT coalesce(first_due > :anywhere_from, false)))",
}
"""Conditions on an id. `known`: the logs have a message of its shard, offset and row."""


def missing_ids(
    expected: DataFrame,
    commands: DataFrame,
    answers: DataFrame,
    imported: DataFrame,
    deliveries: DataFrame,
    windows: DataFrame,
    anywhere_from: int | None,
) -> DataFrame:
    """The ids of the column `id` of a table, each once, that are not known to be in the logs: `id`, `shard`, `offset`,
    `row`, `first_due`, `unprovable` (then it cannot be known). Raises BadInput for a table without that column."""
    if COLUMN not in expected.columns:
        raise BadInput(
            f"column {COLUMN}: the table of expected ids does not have it; it has {', '.join(expected.columns)}"
        )
    raw = F.trim(F.col(COLUMN).cast("string")).cast("binary").alias("id")
    ids = logs.with_id(expected.select(raw).where("id IS NOT NULL").distinct()).select(
        "id", "shard", F.col("first_offset").alias("offset"), F.col("first_row").alias("row"), "first_due", "mac"
    )
    refused = answers.where(
        F.col("answer").isin(int(Answer.DUPLICATE), int(Answer.CONFLICT), int(Answer.MALFORMED))
    ).select("shard", "offset")
    none, first = F.lit(None).cast("bigint"), F.lit(0).cast("bigint")
    sent = (
        commands.where("kind = 'schedule'")
        .join(refused, ["shard", "offset"], "left_anti")
        .select("shard", "offset", first.alias("row"), "due", none.alias("mac"))
    )
    files = imported.select(
        "shard", "offset", "row", F.when(~F.col("counted"), F.col("due")).alias("due"), none.alias("mac")
    )
    records = deliveries.where("shard IS NOT NULL").select(
        "shard", F.col("first_offset").alias("offset"), F.col("first_row").alias("row"),
        F.col("first_due").alias("due"), "mac",
    )  # fmt: skip
    there = (
        sent.unionByName(files)
        .unionByName(records)
        .groupBy("shard", "offset", "row")
        .agg(F.min("due").alias("due"), F.min("mac").alias("seen_mac"), F.lit(True).alias("known"))
    )
    matches = ids.join(there, ["shard", "offset", "row"], "left").join(
        F.broadcast(windows.select("shard", "known_from", "read_to", "buffer_end")), "shard", "left"
    )
    judged = matches.withColumn("known", F.coalesce("known", F.lit(False)))
    unprovable = (
        RULES["unprovable"]
        .replace(":direct", str(DIRECT))
        .replace(":anywhere_from", "CAST(NULL AS BIGINT)" if anywhere_from is None else str(anywhere_from))
    )
    missing = judged.where(f"NOT coalesce({RULES['there']}, known)")
    return missing.select(
        "id", F.coalesce("shard", F.lit(-1)).alias("shard"), "offset", "row", "first_due",
        F.coalesce(F.expr(unprovable), F.lit(False)).alias("unprovable"),
    )  # fmt: skip


def violations(missing: DataFrame) -> DataFrame:
    """Rows of `VIOLATIONS`: `missing`."""
    provable = missing.where("NOT unprovable").withColumn("asked", F.col("first_due"))
    none = F.when(F.col("offset").isNull(), "this is no id of duemq").otherwise("no command and no record has it")
    return listed(provable, "missing", none)
