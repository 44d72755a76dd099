"""Bulk schedule from end to end, exactly once: see ADR 22.

    judge and write     write the valid rows as delay files and the others as a table, in an attempt's folder
    manifest            list the files of the job, in a document that is written once
    hand over           send all files in one request, which the server accepts as a whole or not at all
    wait                until each master has imported the files

A later run with the same id continues the job: without a manifest it starts over, with one it hands over the files in
the manifest. The server imports the same content only once, so repeating a hand-over changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame

from duemq.model.failpoint import Failpoint, no_failpoint
from duemq.pipeline.bulk_schedule.attempt import ScheduleAttempt
from duemq.pipeline.bulk_schedule.ids import ids
from duemq.pipeline.bulk_schedule.manifest import JobFolder, JobManifest, print_of
from duemq.pipeline.bulk_schedule.plans import plan_of
from duemq.pipeline.bulk_schedule.rules import BulkRules
from duemq.pipeline.bulk_schedule.server import hand_over, imported, shown
from duemq.pipeline.bulk_schedule.stage import stage_of
from duemq.pipeline.columns import Columns
from duemq.pipeline.errors import BadInput, RowsRejected
from duemq.pipeline.logs.server import Server
from duemq.pipeline.logs.tables import fingerprint, schema_of
from duemq.pipeline.spark.progress import Silent, Teller

__all__ = ["Options", "RowsRejected", "ScheduleResult", "schedule"]


@dataclass(frozen=True, slots=True)
class Options:
    """`stage`: a place below the server's `delay_files.import_from`: a folder that driver, executors and nodes see
    under the same path, or `s3a://BUCKET/PREFIX`. `rejects`: the path or URI in which to create a folder with the job's
    rejected rows; None: next to the job's files. `link`: the server may link the files instead of copying them.
    `strict`: if any row is rejected, nothing is scheduled."""

    stage: Path | str
    rejects: Path | str | None = None
    link: bool = True
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """A finished job: all valid rows are scheduled. `ids`: see `ids.ids`. `again`: an earlier run finished the job.

    `forgotten`: the number of accepted rows in files that were handed over, but whose outcome the server no longer
    keeps.
    """

    manifest: JobManifest
    ids: DataFrame
    again: bool
    forgotten: int = 0


def schedule(
    frame: DataFrame,
    columns: Columns,
    job: str,
    options: Options,
    server: Server | None = None,
    *,
    rules: BulkRules | None = None,
    source: str | None = None,
    earlier: str | None = None,
    teller: Teller | None = None,
    failpoint: Failpoint = no_failpoint,
    clock: Callable[[], int] = lambda: int(time.time() * 1000),
) -> ScheduleResult:
    """Schedule the rows of a frame, exactly once under the id `job`; another run with the same id changes nothing.

    `source` identifies the frame, so that another job with the same id is refused; None: the frame is identified by its
    files (see `fingerprint`) and its plan (see `plan_of`), which must not contain a changing value such as the time of
    day. `earlier`: the `source` that earlier versions used for these rows; their jobs are continued. `rules`: None
    means the server's. Raises BadInput, JobFailed, RowsRejected, and the client's errors.
    """
    server, teller, spark = server or Server(), teller or Silent(), frame.sparkSession
    folder = JobFolder(stage_of(spark, options.stage, job), job)
    about = f"{schema_of(frame)}\n{source or _rows_of(frame)}"
    prints = {print_of(columns.as_dict(), one) for one in (about, f"{schema_of(frame)}\n{earlier}")}
    manifest, again = folder.manifest(), folder.imports() is not None
    rules = rules or (BulkRules() if again else BulkRules.of(server.limits()))
    server_clock = rules.server_clock(clock)
    if manifest is None:
        folder.check()
        attempt = ScheduleAttempt(
            frame, columns, folder, rules, about, options.rejects, options.strict, teller, failpoint, server_clock
        )
        manifest = attempt.written()
        failpoint("before_manifest")
        manifest = folder.settle(manifest)
        failpoint("manifest")
    else:
        teller.says(f"job {job} was written before: {manifest.accepted:,} rows in {len(manifest.files):,} files")
    if manifest.print not in prints:
        raise BadInput(
            f"job {job} was made of another table or with other columns ({folder.stage.place}/manifest.json): another "
            "job needs another id"
        )
    imports = folder.imports()
    if imports is None:
        imports = _imported(manifest, folder, options, server, teller, failpoint, server_clock)
        folder.done(imports)
        failpoint("done")
    folder.clean(manifest)
    forgotten = sum(file.rows for file in manifest.files if imports[file.path] is None)
    return ScheduleResult(manifest, ids(spark, manifest, folder.stage, imports, server), again, forgotten)


def _rows_of(frame: DataFrame) -> str:
    return f"{fingerprint(frame)}\n{plan_of(frame)}"


def _imported(
    manifest: JobManifest,
    folder: JobFolder,
    options: Options,
    server: Server,
    teller: Teller,
    failpoint: Failpoint,
    clock: Callable[[], int],
) -> dict[str, str | None]:
    with server.client() as client:
        teller.step(f"handing {len(manifest.files):,} files over")
        forgotten = hand_over(client, manifest, folder, link=options.link, failpoint=failpoint, clock=clock)
        teller.step(f"waiting until {manifest.accepted:,} messages are imported")
        imports = imported(client, manifest, folder, teller, forgotten, failpoint)
    rows = sum(file.rows for file in manifest.files if file.path in forgotten)
    teller.says(f"{manifest.accepted - rows:,} messages imported")
    if rows:
        teller.says(
            f"{rows:,} rows more were handed over before {shown(folder.handed_at() or 0)}: their windows have passed, "
            "and the server no longer keeps the outcome of their files"
        )
    return imports
