"""Sends the rows that bulk schedule rejects because they are due too soon.

These rows are in the job's table of rejects, which is written once. The name of each message combines the job's id with
the row's name, so a repeat is recognised as long as the server remembers names. A table of answers has the outcome of
each row; once it is complete, nothing more is sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from duemq.pipeline.bulk_schedule.manifest import JobManifest
from duemq.pipeline.bulk_schedule.rules import REASON, BulkRules
from duemq.pipeline.columns import OWN, Columns, column
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.files.uris import uri_of
from duemq.pipeline.logs.server import Server
from duemq.pipeline.send.commands import fields
from duemq.pipeline.send.rules import sendable
from duemq.pipeline.send.twice import without_ambiguous
from duemq.pipeline.spark.progress import Silent, Teller, step
from duemq.pipeline.spark_source.options import WriteOptions
from duemq.pipeline.spark_source.posting import ANSWERS_DDL, REFUSED, posting

REMEMBERED_MS: Final = 24 * 3_600_000  # by default, names are remembered for this time after their messages ended
_NAME: Final = "duemq_job_name"
_REJECTED: Final = "rejected"


@dataclass(frozen=True, slots=True)
class SoonResult:
    """The outcome of a job's rejects: `sent` of them are messages now, sent by this or an earlier run; `left` are not.
    `answers`: a table `name, status, detail` with one row for each; None if the job had no rejects."""

    sent: int = 0
    left: int = 0
    answers: str | None = None


def check_soon(soon: str, strict: bool, columns: Columns) -> None:
    """Check a job's option --soon before anything is written. Raises BadInput."""

    if soon == "send" and strict:
        raise BadInput("--soon send does not go with --strict: rows due too soon are rejected before they are sent")
    if soon == "send" and columns.name is None:
        raise BadInput("--soon send: rows need names, so that each is sent once: add --name COLUMN")


def send_soon(
    spark: SparkSession,
    manifest: JobManifest,
    columns: Columns,
    url: str | None,
    rules: BulkRules | None = None,
    teller: Teller | None = None,
    clock: Callable[[], int] = lambda: int(time.time() * 1000),
) -> SoonResult:
    """Send the job's rejects that break no rule but the lead. `columns`: the job's columns, with names. `url`: the
    server's URL; None means the one in the environment. `rules`: None means the server's.

    Rows that break other rules are rejected again; all rows are in the table of answers. Raises BadInput, JobFailed,
    and the client's errors.
    """
    check_soon("send", False, columns)
    if not manifest.rejected:
        return SoonResult()
    assert manifest.rejects is not None and columns.name is not None
    teller = teller or Silent()
    where = uri_of(manifest.rejects)
    answers = f"{where}-sent"
    if (done := _counted(spark, answers)) is not None and done.sent + done.left == manifest.rejected:
        teller.says("rows due too soon were sent before")
        return done
    server = Server.at(url)
    rules = rules or BulkRules.of(server.limits())
    if rules.server_clock(clock)() > manifest.began + REMEMBERED_MS:
        raise JobFailed(
            f"job {manifest.job} began more than {REMEMBERED_MS // 3_600_000} hours ago: the server may have forgotten "
            f"the names of rows that were sent then. Check which rows of {manifest.rejects} are missing, and send them "
            "with `duemq spark send`"
        )
    try:
        rejects = spark.read.parquet(where).drop(REASON)
    except AnalysisException as error:
        raise JobFailed(f"{manifest.rejects} cannot be read any more: rows due too soon are unknown") from error
    if _NAME in rejects.columns:
        raise BadInput(f"column {_NAME}: is used here; rename yours")
    own = column(columns.name).cast("string")
    named = rejects.withColumn(_NAME, F.concat(F.lit(f"{manifest.job}:"), own))
    judged_rows = without_ambiguous(
        sendable(named, replace(columns, name=_NAME), rules, manifest.began), columns, equal=False
    )
    with step(spark, teller, "sending rows due too soon"):
        sent = fields(judged_rows).mapInArrow(posting(WriteOptions(server, past=True)), ANSWERS_DDL)
        bad = judged_rows.where(F.col(OWN + REASON).isNotNull()).select(
            F.col(OWN + "name").alias("name"), F.lit(_REJECTED).alias("status"), F.col(OWN + REASON).alias("detail")
        )
        sent.unionByName(bad).write.mode("overwrite").parquet(answers)
    counted = _counted(spark, answers)
    assert counted is not None
    return counted


def _counted(spark: SparkSession, answers: str) -> SoonResult | None:
    try:
        table = spark.read.parquet(answers)
    except AnalysisException:
        return None
    counts = {row["status"]: row["count"] for row in table.groupBy("status").count().collect()}
    left = counts.pop(_REJECTED, 0) + counts.pop(REFUSED, 0)
    return SoonResult(sum(counts.values()), left, answers)
