"""Bulk schedule from end to end, exactly once: see ADR 22.

    judge and write     an attempt folder gets the delay files of the rows that can be scheduled, and the others apart
    manifest            says which files are the job; written once
    hand over           all of its files by one request, which the server accepts as a whole or not at all
    wait                until each node that decides has taken them in

The next run of the same id goes on where one ended: before the manifest it begins anew, after it the files of the
manifest are what is handed over. A content is adopted once, so a repeat of that changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from duemq.model.fault import Fault, no_fault
from duemq.pipeline.bulk import files
from duemq.pipeline.bulk.columns import OWN, Columns
from duemq.pipeline.bulk.ids import ids
from duemq.pipeline.bulk.manifest import JobFolder, Manifest, print_of
from duemq.pipeline.bulk.rules import REASON, Rules, judged, rejected
from duemq.pipeline.bulk.server import adopted, hand_over
from duemq.pipeline.bulk.stages import stage_of
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.progress import Silent, Teller, step
from duemq.pipeline.server import Server
from duemq.pipeline.storage import below, local_path, uri_of
from duemq.pipeline.tables import fingerprint


@dataclass(frozen=True, slots=True)
class Options:
    """`stage`: below the server's `far.adopt_from`, a folder that driver, executors and nodes see under one path, or
    `s3a://BUCKET/PREFIX`. `rejects`: a folder or URI where rejected rows go, in a folder of the job; None: beside its
    files. `link`: the server may link the files in place of writing them anew. `strict`: where rows are rejected
    nothing is scheduled."""

    stage: Path | str
    rejects: Path | str | None = None
    link: bool = True
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A job that is done: what could be scheduled is. `ids`: see `ids.ids`. `again`: an earlier run did it."""

    manifest: Manifest
    ids: DataFrame
    again: bool


class RowsRejected(JobFailed):
    """Rows were rejected, and the job was to be strict: nothing is scheduled."""


def schedule(
    frame: DataFrame,
    columns: Columns,
    job: str,
    options: Options,
    server: Server | None = None,
    *,
    rules: Rules | None = None,
    source: str | None = None,
    teller: Teller | None = None,
    fault: Fault = no_fault,
    clock: Callable[[], int] = lambda: int(time.time() * 1000),
) -> Scheduled:
    """Schedule the rows of a frame, exactly once under the id `job`; a second run with it changes nothing.

    `source` says what is in the frame, so that another job of the same id is noticed; None: the files that it reads,
    see `fingerprint`. `rules` None: those of the server. Raises BadInput, JobFailed, RowsRejected, and what the client
    raises.
    """
    server, teller = server or Server(), teller or Silent()
    spark = frame.sparkSession
    folder = JobFolder(stage_of(spark, options.stage, job), job)
    about = f"{frame.schema.json()}\n{source or fingerprint(frame)}"
    printed = print_of(columns.said(), about)
    manifest, again = folder.manifest(), folder.adoptions() is not None
    if manifest is None:
        rules = rules or Rules.of(server.limits())
        manifest = _written(spark, frame, columns, folder, options, rules, about, teller, fault, clock)
        fault("before_manifest")
        manifest = folder.settle(manifest)
        fault("manifest")
    else:
        teller.says(f"job {job} was written before: {manifest.accepted:,} rows in {len(manifest.files):,} files")
    if manifest.print != printed:
        raise BadInput(
            f"job {job} was made of another table or with other columns ({folder.stage.place}/manifest.json): another "
            "job needs another id"
        )
    adoptions = folder.adoptions()
    if adoptions is None:
        adoptions = _adopted(manifest, folder, options, server, teller, fault)
        folder.done(adoptions)
        fault("done")
    folder.clean(manifest)
    return Scheduled(manifest, ids(spark, manifest, folder.stage, adoptions, server), again)


def _adopted(
    manifest: Manifest, folder: JobFolder, options: Options, server: Server, teller: Teller, fault: Fault
) -> dict[str, str]:
    with server.client() as client:
        teller.step(f"handing {len(manifest.files):,} files over")
        hand_over(client, manifest, folder.stage, link=options.link, fault=fault)
        teller.step(f"waiting until {manifest.accepted:,} messages are adopted")
        found = adopted(client, manifest, teller, fault)
    teller.says(f"{manifest.accepted:,} messages adopted")
    return found


def _written(
    spark: SparkSession,
    frame: DataFrame,
    columns: Columns,
    folder: JobFolder,
    options: Options,
    rules: Rules,
    about: str,
    teller: Teller,
    fault: Fault,
    clock: Callable[[], int],
) -> Manifest:
    """Write the files of an attempt, and what its manifest is to say."""
    began, attempt = clock(), folder.new_attempt()
    told = judged(frame, columns, rules, began)
    observed = Observation()
    counted = told.observe(observed, F.count("*").alias("rows"), F.count(OWN + REASON).alias("rejected"))
    with step(spark, teller, "sorting and writing delay files"):
        files.write(files.messages(counted, columns, folder.job), folder.stage.uri(attempt))
    fault("written")
    with step(spark, teller, "checking what was written"):
        found = files.looked_at(spark, folder.stage, attempt)
    written = sum(file.rows for file in found)
    # Where no row can be scheduled, Spark may have found that out without a look at any.
    rows, bad = (observed.get["rows"], observed.get["rejected"]) if written else _counts(told)
    teller.says(f"{rows:,} rows read: {written:,} written to {len(found):,} files, {bad:,} rejected")
    rejects: str | None = None
    if bad:
        rejects = folder.stage.uri(f"{attempt}/rejects")
        if options.rejects is not None:
            rejects = below(uri_of(options.rejects), f"{folder.job}-{attempt}")
        with step(spark, teller, "writing the rejected rows"):
            rejected(told).write.parquet(rejects)
        fault("rejects")
    apart = 0 if rejects is None else spark.read.parquet(rejects).count()
    if (rows - bad, bad) != (written, apart) and _counts(told) != (written + apart, apart):
        # What Spark observes may count a task twice that it had to repeat: so they were counted anew.
        folder.stage.remove(attempt)
        raise JobFailed("the source changed while it was read: nothing is scheduled. Run the job again")
    if bad and options.strict:
        raise RowsRejected(f"{apart:,} of {written + apart:,} rows were rejected ({rejects}): nothing is scheduled")
    where = None if rejects is None else str(local_path(rejects) or rejects)
    return Manifest(
        folder.job, began, columns.said(), about, print_of(columns.said(), about), attempt, written + apart, apart,
        where, tuple(found),
    )  # fmt: skip


def _counts(told: DataFrame) -> tuple[int, int]:
    """How many rows there are, and how many of them cannot be scheduled, by reading them."""
    counted = told.agg(F.count("*").alias("rows"), F.count(OWN + REASON).alias("rejected")).first()
    assert counted is not None
    return counted["rows"], counted["rejected"]
