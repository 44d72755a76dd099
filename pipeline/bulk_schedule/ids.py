"""The ids of a job's messages, made by the server when they are asked for, beside what joins them back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from duemq.client import Admin
from duemq.pipeline.bulk_schedule.manifest import JobManifest
from duemq.pipeline.bulk_schedule.stage import Stage
from duemq.pipeline.sources.server import Server
from duemq.pipeline.spark.parallel import tasks_for

_MAX: Final = 10_000  # ids per request
SCHEMA: Final = "id string, name string, topic string, key binary, due_ms bigint, file string, row bigint"
_NAMES: Final = [column.split()[0] for column in SCHEMA.split(", ")]
_READ: Final = ["name", "topic", "key", "due_ms"]


def ids(
    spark: SparkSession, manifest: JobManifest, stage: Stage, imports: Mapping[str, str | None], server: Server
) -> DataFrame:
    """One row per message: `id, name, topic, key, due_ms, file, row`. Lazy: the job's files are read, and the server
    asked for their ids, when it is used, which has to be before their windows are due. Files whose outcome the server
    has forgotten are left out. `name` is null where none is
    mapped; `file` is a path below the job's folder and `row` counts from 0."""
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
            message_ids = client.imported_ids(file_import, first, count)
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
