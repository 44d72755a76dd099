"""Where records are: in the partition of their key, and in the order of their due times.

A shard delivers in the order of its keys: due time, then offset, then row (docs/explain/architecture.md). Records with
one key are in one partition, so they stand in it in that order; but a message that was accepted when the other one had
left already comes behind it, and a message that was moved or put off has another key than its id says.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from duemq.model.messages.ids import DIRECT
from duemq.pipeline.audit.outcomes import PLACE_BITS
from duemq.pipeline.audit.violations import id_text, listed, place_text

RULES: dict[str, str] = {
    "wrong_partition": "partition <> pmod(key_hash, partitions) AND NOT (grown AND fitted)",
    "behind": "key < last_key",
    "applied_then": "first_offset < applied_then",
}


def wrong_partitions(deliveries: DataFrame, partitions: DataFrame) -> DataFrame:
    """Rows of `VIOLATIONS`: records that are not in the partition that Kafka's clients choose by their key.

    `partitions`: `topic` and `partitions`, how many it has. A topic may have had fewer once: a record from before the
    first one in its last partition may be where it belonged then.
    """
    keyed = deliveries.where("key_hash IS NOT NULL").join(F.broadcast(partitions), "topic")
    full = (
        deliveries.join(F.broadcast(partitions), "topic")
        .where("partition = partitions - 1")
        .groupBy("topic")
        .agg(F.min("at").alias("full_from"))
    )
    elsewhere = keyed.where("partition <> pmod(key_hash, partitions)").join(F.broadcast(full), "topic", "left")
    fewer = F.exists(F.sequence(F.lit(1), "partitions"), lambda n: F.pmod("key_hash", n) == F.col("partition"))
    judged = elsewhere.withColumns(
        {"grown": F.coalesce(F.col("at") < F.col("full_from"), F.lit(True)), "fitted": fewer}
    )
    right = F.concat(F.lit(", and its key belongs to partition "), F.pmod("key_hash", "partitions"))
    wrong = _violation_rows(judged.where(RULES["wrong_partition"]))
    return listed(wrong, "wrong_partition", F.concat(F.lit("record "), place_text(F.col("place")), right))


def out_of_order(deliveries: DataFrame, changed: DataFrame, entries: DataFrame, windows: DataFrame) -> DataFrame:
    """Rows of `VIOLATIONS`: records behind one of the same shard, topic and key that should have come later.

    `changed`: the messages that anything was said of but their schedule (`changes.MESSAGE`); `entries`: those of the
    range.
    """
    behind = _behind(deliveries, changed, windows)
    judged = behind.join(_applied_with(behind, entries), ["shard", "last_offset", "last_due", "last_row"])
    before = F.concat(
        F.lit("record "), place_text(F.col("place")), F.lit(" is behind one that was due at "), "last_due"
    )
    return listed(_violation_rows(judged.where(RULES["applied_then"])), "out_of_order", before)


def _behind(deliveries: DataFrame, changed: DataFrame, windows: DataFrame) -> DataFrame:
    """Records of messages of the range, each the first of its message, that stand behind one with a later key
    (`last_due`, `last_offset`, `last_row`)."""
    inside = (
        (F.col("first_offset") >= F.col("known_from")) & (F.col("first_offset") < F.col("applied"))
        & (F.col("shard") != DIRECT) & F.col("key_hash").isNotNull()
    )  # fmt: skip
    mine = deliveries.join(F.broadcast(windows.select("shard", "known_from", "applied")), "shard").where(inside)
    # All of these are sorted: by no more than it takes. What else is known of the few that are behind comes later.
    record = ["shard", "topic", "partition", "offset"]
    plain = mine.select("key_hash", *record, "first_due", "first_offset", "first_row").join(
        changed.select("shard", F.col("offset").alias("first_offset"), F.col("row").alias("first_row")),
        ["shard", "first_offset", "first_row"], "left_anti",
    )  # fmt: skip
    key = F.struct("first_due", "first_offset", "first_row")
    of_key = Window.partitionBy("shard", "topic", "key_hash", "partition").orderBy("offset")
    earlier = of_key.rowsBetween(Window.unboundedPreceding, -1)
    placed = plain.withColumn("key", key).withColumn("last_key", F.max("key").over(earlier))
    few = placed.where(RULES["behind"]).select(
        *record, F.col("last_key.first_due").alias("last_due"), F.col("last_key.first_offset").alias("last_offset"),
        F.col("last_key.first_row").alias("last_row"),
    ).localCheckpoint()  # fmt: skip
    behind = mine.join(few, record)
    # A copy of a record is a violation of its own.
    message = ["shard", "first_offset", "first_row"]
    of_these = mine.join(behind.select(*message), message, "left_semi").groupBy(*message).agg(F.count("*").alias("n"))
    return behind.join(of_these.where("n > 1"), message, "left_anti")


def _applied_with(behind: DataFrame, entries: DataFrame) -> DataFrame:
    """Later keys of `behind` with `applied_then`: below which offset all was applied when it left by the ledger."""
    keys = behind.select("shard", "last_due", "last_offset", "last_row").distinct()
    narrow = entries.select("shard", "applied", "cursor_due", "cursor_offset", "cursor_row")
    cursor = F.struct("cursor_due", "cursor_offset", "cursor_row")

    def first(of_keys: Column, of_entries: Column, name: str) -> DataFrame:
        """The `applied` of the first entry that is not below each."""
        marks = keys.select("*", of_keys.alias("mark"), F.lit(None).cast("bigint").alias("applied"))
        line = marks.unionByName(narrow.select("shard", of_entries.alias("mark"), "applied"), allowMissingColumns=True)
        order = Window.partitionBy("shard").orderBy("mark", F.col("applied").asc_nulls_first())
        following = order.rowsBetween(Window.currentRow, Window.unboundedFollowing)
        rows = line.withColumn(name, F.first("applied", ignorenulls=True).over(following))
        return rows.where("last_due IS NOT NULL").drop("mark", "applied")

    by_offset = first(F.col("last_offset") + 1, F.col("applied"), "by_offset")
    key = F.struct(
        F.col("last_due").alias("cursor_due"), F.col("last_offset").alias("cursor_offset"),
        F.col("last_row").alias("cursor_row"),
    )  # fmt: skip
    by_cursor = first(key, cursor, "by_cursor")
    both = by_offset.join(by_cursor, ["shard", "last_due", "last_offset", "last_row"])
    return both.withColumn("applied_then", F.greatest("by_offset", "by_cursor")).drop("by_offset", "by_cursor")


def _violation_rows(records: DataFrame) -> DataFrame:
    """Records with the columns of `VIOLATIONS` and `place`."""
    place = F.shiftleft(F.col("partition").cast("bigint"), PLACE_BITS) + F.col("offset")
    shown = records.select(
        F.coalesce("shard", F.lit(-1)).alias("shard"), "topic", place.alias("place"), F.col("at").alias("delivered_at"),
        F.col("due").alias("asked"), F.lit(1).alias("records"),
        F.coalesce("first_offset", F.xxhash64("id")).alias("offset"),
        F.coalesce("first_row", F.lit(0)).alias("row"), "first_due", "mac",
        *(name for name in ("key_hash", "partitions", "last_due") if name in records.columns),
    )  # fmt: skip
    return shown.withColumn("id", id_text(F.col("first_due"), F.col("mac")))
