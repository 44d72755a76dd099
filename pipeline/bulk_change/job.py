"""Bulk cancel and bulk move: change the messages that a table refers to; each row gets an answer.

However a job ended, it can be run again: the answers are the same, except for messages that came due between the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duemq.pipeline.bulk_change.requests import ANSWERS_DDL, Batches, ChangeClient, cancelling, moving
from duemq.pipeline.bulk_change.slots import Slots
from duemq.pipeline.columns import column
from duemq.pipeline.columns.instants import check_zone, need_time, shown
from duemq.pipeline.errors import BadInput
from duemq.pipeline.files.patterns import exact
from duemq.pipeline.files.uris import uri_of
from duemq.pipeline.spark.progress import Silent, Teller, step

STATUSES: Final = (
    "cancelled", "moved", "already_delivered", "already_cancelled", "already_dead", "unknown", "pending", "refused",
)  # fmt: skip
ADDED: Final = ("status", "at_ms", "detail")
CONNECTIONS: Final = 8
_TASKS: Final = 32  # per connection: with a billion ids, a task takes about 15 minutes
TARGET: Final = "__duemq_target"
_DUE: Final = "__duemq_due"
_WHY_NOT: Final = "__duemq_why_not"


@dataclass(frozen=True)
class Targets:
    """How a row refers to its messages: by `column`, which has ids, or names that clients chose.

    With `ids` (a table such as bulk schedule writes), `column` has a business key, which is in the column `key` of
    `ids`: the row refers to every id with this key, and the answers have the id in the column `id`.
    """

    column: str
    ids: DataFrame | None = None
    key: str = "name"

    def of(self, rows: DataFrame) -> DataFrame:
        """The rows with the id of a message in the column `TARGET`, one row per id; null if a row has no id.

        With `ids`, the rows also get the column `due_ms` of `ids`, unless they have one already. Raises BadInput.
        """
        _need(rows, self.column, "the table")
        if self.ids is None:
            return rows.withColumn(TARGET, _text(self.column))
        for name in (self.key, "id"):
            _need(self.ids, name, "the table of ids")
        if "id" in rows.columns:
            raise BadInput("column id: the answers have the ids found by key in it; rename yours")
        key = "__duemq_key"
        due = ["due_ms"] if "due_ms" in self.ids.columns and "due_ms" not in rows.columns else []
        id_rows = self.ids.select(_text(self.key).alias(key), _text("id").alias("id"), *due)
        matches = (
            rows.withColumn(key, _text(self.column)).join(id_rows.dropDuplicates([key, "id"]), key, "left").drop(key)
        )
        return matches.withColumn(TARGET, F.col("id"))


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """`counts`: the number of rows by status, without zeros. `answers`: the URI of the table of answers, or None."""

    counts: Mapping[str, int]
    answers: str | None = None


def cancel(
    rows: DataFrame,
    targets: Targets,
    server: ChangeClient,
    *,
    answers: str | None = None,
    connections: int = CONNECTIONS,
    teller: Teller | None = None,
) -> ChangeResult:
    """Cancel the messages that the rows refer to, each once even if several rows refer to it. Each machine of the Spark
    cluster sends at most `connections` requests at the same time.

    `answers`: a new folder (a path on this machine, or a URI) for the rows as Parquet, with `status`, `at_ms` and
    `detail`. `status`: cancelled (by this or an earlier run), already_delivered, already_dead, unknown, or pending (no
    answer in time: run the job again); `at_ms`: when the message ended (epoch ms). Raises BadInput, and Unavailable if
    the server did not answer.
    """
    target_rows = _with_targets(rows, targets)
    messages = target_rows.where(F.col(TARGET).isNotNull()).select(F.col(TARGET).alias("id")).distinct()
    work = cancelling(server, _slots(server, connections))
    return _changed(target_rows, in_order(messages, connections), work, targets, answers, "cancelling", teller)


def move(
    rows: DataFrame,
    targets: Targets,
    server: ChangeClient,
    to: str,
    by_ms: int = 0,
    *,
    answers: str | None = None,
    connections: int = CONNECTIONS,
    zone: str | None = None,
    past: bool = False,
    teller: Teller | None = None,
) -> ChangeResult:
    """Move messages to the time that the SQL expression `to` has in their row, shifted by `by_ms`. `zone`: the zone of
    times without one (see `read_time`).

    This works as `cancel` does, with further values of `status`: moved, with the new due time as `at_ms`;
    already_cancelled, with the time of the cancel; and refused, with the reason: no time, a time more than a day past
    (unless `past` is set), or several rows with different times for one message. A message with a new time in the past
    is delivered at once.
    """
    target_rows = _with_targets(rows, targets)
    messages = new_times(target_rows, to, by_ms, zone)
    work = moving(server, _slots(server, connections), past)
    return _changed(target_rows, in_order(messages, connections), work, targets, answers, "moving", teller)


def new_times(target_rows: DataFrame, to: str, by_ms: int = 0, zone: str | None = None) -> DataFrame:
    """One row per message to which rows with a `TARGET` refer: `id`, `due_ms`, and `refused`: why it has no new time,
    or null. See `move`. Raises BadInput."""
    if zone is not None:
        check_zone(target_rows.sparkSession, zone)
    value = F.expr(to)
    time = need_time(value, target_rows.select(value).schema[0].dataType, to, zone=zone)
    due = F.try_add(time.ms, F.lit(by_ms).cast("bigint"))
    why_not = (
        F.when(value.isNull(), f"{to} is null: there is no time to move to")
        .when(time.problem.isNotNull(), F.concat(F.lit(f"{to}: '"), shown(value), F.lit("' "), time.problem))
        .when(due.isNull(), F.concat(F.lit(f"{to}: '"), shown(value), F.lit(f"' and {by_ms} ms are out of range")))
    )
    times = target_rows.where(F.col(TARGET).isNotNull()).select(
        F.col(TARGET).alias("id"), due.alias(_DUE), why_not.alias(_WHY_NOT)
    )
    each = times.groupBy("id").agg(
        F.min(_DUE).alias("due_ms"), F.max(_DUE).alias("last"), F.min(_WHY_NOT).alias(_WHY_NOT)
    )
    several = F.concat(
        F.lit("rows name this message with several times, from "), F.col("due_ms"), F.lit(" to "), "last"
    )
    refused = F.coalesce(F.col(_WHY_NOT), F.when(F.col("due_ms") < F.col("last"), several))
    return each.select("id", "due_ms", refused.alias("refused"))


def in_order(messages: DataFrame, connections: int) -> DataFrame:
    """The messages in the order of their ids. Messages with neighbouring ids are due at nearly the same time, so that a
    request reads a few row groups of a delay file instead of one per message. There are many tasks, because a failed
    task starts over."""
    return messages.repartitionByRange(_TASKS * connections, "id").sortWithinPartitions("id")


def _slots(server: ChangeClient, connections: int) -> Slots:
    return Slots(server.url or "", connections)


def _with_targets(rows: DataFrame, targets: Targets) -> DataFrame:
    if clashes := [name for name in ADDED if name in rows.columns]:
        raise BadInput(f"column {clashes[0]}: the answers have a column of this name; rename yours")
    return targets.of(rows)


def _changed(
    target_rows: DataFrame,
    messages: DataFrame,
    work: Callable[[Batches], Batches],
    targets: Targets,
    folder: str | None,
    what: str,
    teller: Teller | None,
) -> ChangeResult:
    spark, uri = target_rows.sparkSession, None if folder is None else uri_of(folder)
    answered = _joined(target_rows, messages.mapInArrow(work, ANSWERS_DDL), targets)
    with step(spark, teller or Silent(), what):
        if uri is not None:  # count the written rows: computing them again would send the commands again
            answered.write.parquet(uri)
            answered = spark.read.schema(answered.schema).parquet(exact(uri))
        counts = {row["status"]: row["count"] for row in answered.groupBy("status").count().collect()}
    return ChangeResult({status: counts[status] for status in STATUSES if status in counts}, uri)


def _joined(target_rows: DataFrame, answers: DataFrame, targets: Targets) -> DataFrame:
    by_target = answers.withColumnRenamed("id", TARGET)
    none = F.lit("no id" if targets.ids is None else "no id for this key")
    no_id = F.col(TARGET).isNull()
    return (
        target_rows.join(by_target, TARGET, "left")
        .withColumns({"status": F.when(no_id, "unknown").otherwise(F.col("status")),
                      "detail": F.when(no_id, none).otherwise(F.col("detail"))})
        .drop(TARGET)
    )  # fmt: skip


def _text(name: str) -> Column:
    """Text without surrounding spaces; null if it is empty."""
    return F.nullif(F.trim(column(name).cast("string")), F.lit(""))


def _need(table: DataFrame, column: str, what: str) -> None:
    if column not in table.columns:
        raise BadInput(f"column {column}: {what} does not have it; it has {', '.join(table.columns)}")
