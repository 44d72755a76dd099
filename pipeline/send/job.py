"""Sends a table: its rows become commands, and the rows that break a rule become a table of rejects.

However a job ended, it can be run again: rows that were sent before are duplicates, because they have the same names.
The table is read twice, and a third time for its rejects, so the rows of a source that returns other rows each time
must be saved first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from duemq.pipeline.bulk_schedule.rules import BulkRules, rejected
from duemq.pipeline.columns import Columns
from duemq.pipeline.errors import RowsRejected
from duemq.pipeline.files.uris import below, uri_of
from duemq.pipeline.logs.kafka import Kafka
from duemq.pipeline.send.buffer_topic import buffer_of, shards_of, sink_options
from duemq.pipeline.send.commands import commands
from duemq.pipeline.send.rules import sendable
from duemq.pipeline.send.twice import TableCheck, look, without_ambiguous
from duemq.pipeline.spark.progress import Silent, Teller, step


@dataclass(frozen=True, slots=True)
class SendResult:
    """`sent`: rows that are in the log, on as many replicas as Kafka requires. `rejects`: the folder of the `rejected`
    rows, if one was named. `overdue`: sent rows that were already due when the job `began` (epoch ms)."""

    rows: int
    sent: int
    rejected: int
    rejects: str | None
    shards: int
    began: int
    overdue: int


def send(
    frame: DataFrame,
    columns: Columns,
    kafka: Kafka,
    *,
    rejects: str | None = None,
    strict: bool = False,
    compare_names: bool = True,
    shards: int | None = None,
    past: bool = False,
    rules: BulkRules | None = None,
    teller: Teller | None = None,
    clock: Callable[[], int] = lambda: int(time.time() * 1000),
) -> SendResult:
    """Send the rows of a table, each once under its name, however often this is run.

    `rejects`: the path on this machine, or the URI, in which to create a folder with the rejected rows. `strict`: if
    any row is rejected, nothing is sent. `compare_names`: reject rows that have the same name but differ, which takes a
    shuffle of the names. `shards`: None means that their number is read from the buffer topic. `past`: send rows due
    more than a day ago instead of rejecting them. Raises BadInput, RowsRejected, Unavailable and BadConfig; if Spark
    gave up the job, it can be run again.
    """
    teller, began = teller or Silent(), clock()
    spark, shards = frame.sparkSession, shards or shards_of(kafka)
    judged_rows = sendable(frame, columns, rules, began, past)
    # The rows are counted before they are written: Spark 4.3 never reports observations below the Kafka sink.
    with step(spark, teller, "checking all rows"):
        judged_rows, check = looked_at(judged_rows, columns, compare_names, began)
    rows, bad = check.rows, check.rejected
    if bad and strict:
        raise RowsRejected(f"{bad:,} of {rows:,} rows were rejected: nothing is sent")
    if rows > bad:
        with step(spark, teller, f"sending to {shards} shards"):
            commands(judged_rows, columns, shards, buffer_of(kafka)).write.format("kafka").options(
                **sink_options(kafka)
            ).save()
    teller.says(f"{rows:,} rows read: {rows - bad:,} sent, {bad:,} rejected, {check.overdue:,} due already")
    where = None
    if bad and rejects is not None:
        where = below(uri_of(rejects), f"send-{began}")
        with step(spark, teller, "writing the rejected rows"):
            rejected(judged_rows).write.parquet(where)
    return SendResult(rows, rows - bad, bad, where, shards, began, check.overdue)


def looked_at(judged_rows: DataFrame, columns: Columns, compare_names: bool, now: int) -> tuple[DataFrame, TableCheck]:
    """Rows from `sendable`, where rows that share a name but differ are rejected as well, and the counts."""
    check = look(judged_rows, now, names=compare_names)
    if not check.repeated:
        return judged_rows, check
    judged_rows = without_ambiguous(judged_rows, columns)
    return judged_rows, look(judged_rows, now, names=False)
