"""Writing delay files with Spark, and saying what each of them is.

Spark's own Parquet writer is the fast way. The settings below make of its files what duemq can link as they are:
`storage/exchange.py`, docs/delay-files.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duemq.model.timing import WINDOW_MS
from duemq.pipeline.bulk.columns import FIELDS, OWN, Columns, column
from duemq.pipeline.bulk.rules import REASON
from duemq.storage.delay_file import GROUP_BYTES, ROWS_PER_GROUP
from duemq.storage.intake import glance

WINDOW: Final = "window"
_OPTIONS: Final = {
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "1",
    "parquet.block.row.count.limit": str(ROWS_PER_GROUP),
    "parquet.block.size": str(GROUP_BYTES),
    "parquet.block.size.row.check.min": "16",
    "parquet.page.write-checksum.enabled": "true",
    # Of texts that hardly repeat, dictionaries and statistics cost a fifth of the time and are of no use.
    "parquet.enable.dictionary#payload": "false",
    "parquet.enable.dictionary#key": "false",
    "parquet.enable.dictionary#name": "false",
    "parquet.column.statistics.enabled#payload": "false",
    "parquet.column.statistics.enabled#key": "false",
    "parquet.column.statistics.enabled#name": "false",
}
_MOST_ROWS = 2_000_000  # of one file: what is done with one is done by one task
_SCHEMA = "path string, sha256 string, size bigint, window bigint, rows bigint"


@dataclass(frozen=True, slots=True)
class DelayFile:
    """A file of a job. `path`: below the job's folder; `size` in bytes; `window`: its start, ms."""

    path: str
    sha256: str
    size: int
    window: int
    rows: int


def messages(judged: DataFrame, columns: Columns, job: str) -> DataFrame:
    """The rows that can be scheduled, as they are written: shuffled by window, sorted by due time.

    The rows of a large window are shared out among several files, each of which spans all of it; so their shards share
    the work. The job's id is in the metadata of each file: two jobs with equal rows have files of other content.
    """
    due = OWN + "due_ms"
    ordered = [OWN + f"order{number}" for number in range(len(columns.order))]
    fields = [name for name in FIELDS if OWN + name in judged.columns]
    kept = judged.where(F.col(OWN + REASON).isNull()).select(
        *(F.col(OWN + name) for name in fields),
        (F.col(due) - F.col(due) % WINDOW_MS).alias(WINDOW),
        *(column(name).alias(alias) for name, alias in zip(columns.order, ordered, strict=True)),
    )
    sorted_rows = kept.hint("rebalance", WINDOW).sortWithinPartitions(WINDOW, due, *ordered)
    shown = [F.col(OWN + name).alias(name, metadata={"duemq-job": job}) for name in fields]
    return sorted_rows.select(*shown, WINDOW)


def uri(path: Path) -> str:
    """As Hadoop reads it: of a local file, and nothing in it quoted."""
    return f"file://{path}"


def write(frame: DataFrame, folder: Path) -> None:
    """Write what `messages` made."""
    writer = frame.write.partitionBy(WINDOW).options(**_OPTIONS).option("maxRecordsPerFile", _MOST_ROWS)
    writer.parquet(uri(folder))


def looked_at(spark: SparkSession, folder: Path, below: Path) -> list[DelayFile]:
    """All delay files below a folder, each read for its checksum by an executor; paths are those below `below`."""
    paths = sorted(str(path.relative_to(below)) for path in folder.glob(f"{WINDOW}=*/*.parquet"))
    if not paths:
        return []
    root, parts = str(below), min(len(paths), 4 * spark.sparkContext.defaultParallelism)

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = [_look(Path(root), path) for path in batch["path"].to_pylist()]
            yield pa.RecordBatch.from_pylist([asdict(one) for one in found])

    listed = spark.createDataFrame([(path,) for path in paths], "path string").repartition(parts)
    rows: Sequence[pa.RecordBatch] = listed.mapInArrow(look, _SCHEMA).toArrow().to_batches()
    found = [DelayFile(**row) for batch in rows for row in batch.to_pylist()]
    return sorted(found, key=lambda one: (one.window, one.path))


def _look(root: Path, path: str) -> DelayFile:
    found = glance(root / path)
    return DelayFile(path, found.sha256, found.size, found.window, found.rows)
