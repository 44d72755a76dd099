"""The ids of a job's messages, computed by the server on request, with columns to join them to the user's table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duemq.client import Admin
from duemq.client.http.errors import NoIds, UnknownImport
from duemq.pipeline.bulk_schedule.manifest import JobManifest
from duemq.pipeline.bulk_schedule.stage import Stage
from duemq.pipeline.errors import JobFailed
from duemq.pipeline.files.patterns import exact
from duemq.pipeline.files.uris import hadoop_path
from duemq.pipeline.logs.server import Server
from duemq.pipeline.spark.connect import is_remote
from duemq.pipeline.spark.parallel import tasks_for

_MAX: Final = 10_000  # ids per request
SCHEMA: Final = "id string, name string, topic string, key binary, due_ms bigint, file string, row bigint"
_NAMES: Final = [column.split()[0] for column in SCHEMA.split(", ")]
_READ: Final = ["name", "topic", "key", "due_ms"]


def ids(
    spark: SparkSession, manifest: JobManifest, stage: Stage, imports: Mapping[str, str | None], server: Server
) -> DataFrame:
    """One row per message: `id, name, topic, key, due_ms, file, row`. The frame is lazy: using it reads the job's files
    and requests their ids from the server. The server keeps a file until the file's window is loaded; rows of files
    that it no longer keeps are missing. `name` is null if the job has no column of names; `file` is a path relative to
    the job's folder; `row` counts from 0."""
    imported_files = [(file.path, imports[file.path]) for file in manifest.files if imports[file.path] is not None]
    listed = spark.createDataFrame(imported_files, "path string, import string")

    def with_ids(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with server.client() as client:
            for batch in batches:
                for path, file_import in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    with stage.local(path) as file:
                        yield from _of_file(client, file, path, file_import)

    return listed.repartition(tasks_for(spark, len(imported_files))).mapInArrow(with_ids, SCHEMA)


def _of_file(client: Admin, local: Path, path: str, file_import: str) -> Iterator[pa.RecordBatch]:
    first = 0
    with pq.ParquetFile(local, page_checksum_verification=True) as file:
        columns = [name for name in _READ if name in file.schema_arrow.names]
        for batch in file.iter_batches(_MAX, columns=columns, use_threads=False):
            count = batch.num_rows
            try:
                message_ids = client.imported_ids(file_import, first, count)
            except (NoIds, UnknownImport):
                return
            if len(message_ids) != count:
                raise ValueError(f"{path} is not the file that was imported: it has more rows")
            name = batch["name"] if "name" in columns else pa.nulls(count, pa.string())
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(message_ids, pa.string()), name, batch["topic"], batch["key"], batch["due_ms"],
                    pa.repeat(path, count), pa.array(np.arange(first, first + count)),
                ],
                names=_NAMES,
            )  # fmt: skip
            first += count


def write_ids(ids: DataFrame, attempt: str, uri: str) -> int:
    """Write the table of a job's ids to a URI and return its number of rows. An existing table of this job is kept,
    because the server has fewer ids later; a table of another job is replaced once the new one is complete.

    `attempt`: from the job's manifest. Raises JobFailed.
    """
    spark, uri = ids.sparkSession, uri.rstrip("/")
    written = _rows(spark, uri, attempt)
    if is_remote(spark):  # without Hadoop, no folder can be renamed
        if not written:
            ids.write.mode("overwrite").parquet(uri)
        return written or _rows(spark, uri, attempt)
    beside = f"{uri}.{attempt}"
    (files, place), (_, new), (_, success) = (hadoop_path(spark, of) for of in (uri, beside, f"{beside}/_SUCCESS"))
    is_complete = files.exists(success)  # an earlier run may have ended before or during the rename
    if written and not (is_complete and _rows(spark, beside, attempt) > written):
        files.delete(new, True)
        return written
    if not is_complete:
        ids.write.mode("overwrite").parquet(beside)
    files.delete(place, True)
    if not files.rename(new, place):
        raise JobFailed(f"the ids are in {beside}, which cannot be renamed to {uri}")
    return _rows(spark, uri, attempt)


def _rows(spark: SparkSession, uri: str, attempt: str) -> int:
    """The number of ids that the table at a URI has for an attempt; 0 if there is no table."""
    try:
        return spark.read.parquet(exact(uri)).where(F.col("file").startswith(f"{attempt}/")).count()
    except AnalysisException:
        return 0
