"""Sending a table: its rows become commands, those that break a rule a table of rejects.

It may be run again after any end: rows that were sent before are repeats of their names. The table is read twice, and
once more for its rejects: what gives other rows each time has to be written down first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from duemq.pipeline.bulk_schedule.job import RowsRejected
from duemq.pipeline.bulk_schedule.rules import BulkRules, rejected
from duemq.pipeline.columns import Columns
from duemq.pipeline.files.uris import below, uri_of
from duemq.pipeline.logs.kafka import Kafka
from duemq.pipeline.send.buffer_topic import buffer_of, shards_of, sink_options
from duemq.pipeline.send.commands import commands
from duemq.pipeline.send.rules import sendable
from duemq.pipeline.send.twice import TableCheck, look, without_ambiguous
from duemq.pipeline.spark.progress import Silent, Teller, step


@dataclass(frozen=True, slots=True)
class SendResult:
    """`sent` rows are in the log, on all replicas that Kafka asks for. `rejects`: where the `rejected` ones are, if
    they were to be written. `overdue`: how many of those sent were due when the job `began` (epoch ms)."""

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

    `rejects`: a folder (a path of this machine, or a URI) in which one of their own gets the rejected rows. `strict`:
    where rows are rejected nothing is sent. `compare_names`: reject rows that have one name and differ, for which the
    names are shuffled once. `shards`: None reads them from the buffer topic. `past`: rows due more than a
    day ago are meant; else they are rejected. Raises BadInput, RowsRejected, Unavailable and BadConfig; a job that
    Spark gave up may be run again.
    """
    teller, began = teller or Silent(), clock()
    spark, shards = frame.sparkSession, shards or shards_of(kafka)
    judged_rows = sendable(frame, columns, rules, began, past)
    # Counted before, not while it is written: what is observed below the Kafka sink never comes (Spark 4.3).
    with step(spark, teller, "looking at all rows"):
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
    """What `sendable` made of a table, with the rows rejected that share a name and differ, and how many there are."""
    check = look(judged_rows, now, names=compare_names)
    if not check.repeated:
        return judged_rows, check
    judged_rows = without_ambiguous(judged_rows, columns)
    return judged_rows, look(judged_rows, now, names=False)
