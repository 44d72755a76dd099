"""The usual questions about a history, to copy and adapt: DataFrame in, DataFrame out.

    pip install duemq-spark
    python history_questions.py FOLDER [ID]

When it is run as a program, it prints the answers. The frames come from `HistoryTable.read`;
docs/guides/pipeline/history.md describes their columns.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from duemq.model.messages.ids import DIRECT, peek
from duemq.pipeline.errors import BadInput
from duemq.pipeline.history.table import HistoryTable
from duemq.pipeline.spark.session import running

_SHARES = (0.5, 0.9, 0.99, 0.999)
_MESSAGE = ["shard", "first_due_ms", "first_offset", "first_row"]
_HOUR_MS = 3_600_000


def once(deliveries: DataFrame) -> DataFrame:
    """Each delivery once: the first record with the same id and attempt.

    The job writes every record of a topic once, and duemq delivers every message once. Still, a topic that was mirrored
    or refilled from a backup may hold a delivery twice.
    """
    return _numbered(deliveries).where("nth = 1").drop("nth")


def repeated(deliveries: DataFrame) -> DataFrame:
    """The deliveries that `once` leaves out."""
    return _numbered(deliveries).where("nth > 1").drop("nth")


def _numbered(deliveries: DataFrame) -> DataFrame:
    """The deliveries with `nth`: their number, from 1, among those with the same id and attempt."""
    order = Window.partitionBy("id", "attempt").orderBy("delivered_ms", "topic", "partition", "offset")
    return deliveries.withColumn("nth", F.row_number().over(order))


def lateness_by_hour(deliveries: DataFrame, outcomes: DataFrame) -> DataFrame:
    """Per topic and hour of delivery: hour_ms, hour (timestamp), topic, messages, early (number delivered before their
    time), p50_ms, p90_ms, p99_ms, p999_ms, max_ms.

    Messages without a promised time are left out: messages without delay, and messages that a client had delivered
    early, which keep their former time.
    """
    hour = F.col("delivered_ms") - F.col("delivered_ms") % _HOUR_MS
    # The percentiles are exact: approximate ones could be off by 1 % of the messages.
    shares = F.percentile("lateness_ms", list(_SHARES)).alias("shares")
    return (
        deliveries.where(f"shard < {DIRECT} and lateness_ms is not null")
        .join(outcomes.where("outcome = 'sent_now'").select(_MESSAGE).distinct(), _MESSAGE, "left_anti")
        .groupBy(hour.alias("hour_ms"), "topic")
        .agg(
            F.count("*").alias("messages"),
            F.count_if(F.col("lateness_ms") < 0).alias("early"),
            shares,
            F.max("lateness_ms").alias("max_ms"),
        )
        .select(
            "hour_ms", F.timestamp_millis("hour_ms").alias("hour"), "topic", "messages", "early",
            *(F.col("shares")[n].alias(f"p{str(share)[2:].ljust(2, '0')}_ms") for n, share in enumerate(_SHARES)),
            "max_ms",
        )
    )  # fmt: skip


def volume_by_day(deliveries: DataFrame, outcomes: DataFrame) -> DataFrame:
    """Deliveries and other outcomes per day and topic: date, topic (null if only the ledger has the outcome), outcome,
    messages."""
    delivered = deliveries.groupBy("date", "topic", F.lit("delivered").alias("outcome")).agg(
        F.count("*").alias("messages")
    )
    others = outcomes.groupBy("date", "topic", "outcome").agg(F.sum("messages").alias("messages"))
    return delivered.unionByName(others)


def outcomes_of(deliveries: DataFrame, outcomes: DataFrame, message: str) -> DataFrame:
    """Everything that happened to one message, given its id: at_ms, at (timestamp), outcome, topic, due_ms, attempt,
    answer, reason. Oldest first. Raises BadInput for text that is not an id."""
    try:
        key = peek(message)
    except ValueError as error:
        raise BadInput(f"{message!r} is no id of a message") from error
    of = (
        (F.col("shard") == key.shard)
        & (F.col("first_due_ms") == key.due)
        & (F.col("first_offset") == key.offset)
        & (F.col("first_row") == key.row)
    )
    events = outcomes.where(of).select("at_ms", "outcome", "topic", "due_ms", "attempt", "answer", "reason")
    nothing = F.lit(None).cast("string")
    delivered = deliveries.where(of).select(
        F.col("delivered_ms").alias("at_ms"), F.lit("delivered").alias("outcome"), "topic", "due_ms", "attempt",
        nothing.alias("answer"), nothing.alias("reason"),
    )  # fmt: skip
    return events.unionByName(delivered).withColumn("at", F.timestamp_millis("at_ms")).orderBy("at_ms", "outcome")


def main(folder: str, message: str = "") -> None:
    with running("questions") as spark:
        table = HistoryTable(spark, folder)
        deliveries, outcomes = table.read("deliveries"), table.read("outcomes")
        lateness_by_hour(deliveries, outcomes).show()
        volume_by_day(deliveries, outcomes).show()
        if message:
            outcomes_of(deliveries, outcomes, message).show()


if __name__ == "__main__":
    main(*sys.argv[1:])
