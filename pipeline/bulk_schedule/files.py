"""Writes delay files with Spark, and lists them with their checksums.

With the options below, duemq can link the files of Spark's own Parquet writer without rewriting them: see
`storage/delay_files/columns.py` and docs/guides/delay-files.md.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from duemq.model.timing import WINDOW_MS
from duemq.pipeline.bulk_schedule.plans import bytes_of
from duemq.pipeline.bulk_schedule.rules import REASON
from duemq.pipeline.bulk_schedule.stage import Stage
from duemq.pipeline.columns import FIELDS, OWN, Columns, column
from duemq.pipeline.errors import JobFailed
from duemq.pipeline.spark.parallel import tasks_for
from duemq.storage.delay_files.columns import ROWS_PER_GROUP
from duemq.storage.delay_files.sealed_file import GROUP_BYTES
from duemq.storage.imports.import_file import summary_of

WINDOW: Final = "window"
_OPTIONS: Final = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",  # a complete job has a manifest instead
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "1",
    "parquet.block.row.count.limit": str(ROWS_PER_GROUP),
    "parquet.block.size": str(GROUP_BYTES),
    "parquet.block.size.row.check.min": "16",
    "parquet.page.write-checksum.enabled": "true",
    # For texts that rarely repeat, dictionaries and statistics are useless and take a fifth of the time.
    "parquet.enable.dictionary#payload": "false",
    "parquet.enable.dictionary#key": "false",
    "parquet.enable.dictionary#name": "false",
    "parquet.column.statistics.enabled#payload": "false",
    "parquet.column.statistics.enabled#key": "false",
    "parquet.column.statistics.enabled#name": "false",
}
_MAX_ROWS = 2_000_000  # per file, because one task handles a whole file
_IN_ATTEMPT = re.compile(rf"[^/]+/{WINDOW}=[^/]+/[^/_.][^/]*\.parquet")
_SCHEMA = "path string, sha256 string, size bigint, window bigint, rows bigint"
_PARTS_PER_TASK: Final = 16
_UNKNOWN_PARTS: Final = 2_000
_EXACT_PARTS: Final = "spark.shuffle.minNumPartitionsToHighlyCompress"
_FOOTER_BYTES: Final = 8  # at the end of a Parquet file: the length of its footer, and the magic number


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of a job. `path`: relative to the job's folder; `size`: in bytes; `window`: its start, in epoch ms."""

    path: str
    sha256: str
    size: int
    window: int
    rows: int


def messages(judged: DataFrame, columns: Columns, job: str, observation: Observation | None = None) -> DataFrame:
    """The rows that can be scheduled, shuffled by window and sorted by due time, ready to be written.

    A large window becomes several files. Each of them spans the whole window, so that the shards that import them share
    the work. Each file has the job's id in its metadata, so that the files of two jobs with equal rows differ.
    `observation` counts the rows after the shuffle and sums their hashes (see `sums`).
    """
    due = OWN + "due_ms"
    ordered = [OWN + f"order{number}" for number in range(len(columns.order))]
    fields = _fields(judged)
    good_rows = judged.where(F.col(OWN + REASON).isNull()).select(
        *(F.col(OWN + name) for name in fields),
        (F.col(due) - F.col(due) % WINDOW_MS).alias(WINDOW),
        *(column(name).alias(alias) for name, alias in zip(columns.order, ordered, strict=True)),
    )
    shuffled = good_rows.hint("rebalance", _parts(good_rows), WINDOW)
    if observation is not None:  # before the sort, because Spark does not know that an observation keeps the order
        shuffled = shuffled.observe(observation, *sums(shuffled).values())
    sorted_rows = shuffled.sortWithinPartitions(WINDOW, due, *ordered)
    shown = [F.col(OWN + name).alias(name, metadata={"duemq-job": job}) for name in fields]
    return sorted_rows.select(*shown, WINDOW)


def sums(frame: DataFrame, where: Column | None = None) -> dict[str, Column]:
    """Aggregates that differ if the messages of two frames differ: `rows`, and `sum` and `xor` of the row hashes.

    The sum uses the upper halves of the hashes, so two billion rows do not overflow it.
    """
    hashed = F.xxhash64(*(F.col(OWN + name) for name in _fields(frame)))
    counted = hashed if where is None else F.when(where, hashed)
    return {
        "rows": F.count(counted).alias("rows"),
        "sum": F.coalesce(F.sum(F.shiftright(counted, 32)), F.lit(0)).alias("sum"),
        "xor": F.coalesce(F.bit_xor(counted), F.lit(0)).alias("xor"),
    }


def _fields(frame: DataFrame) -> list[str]:
    return [name for name in FIELDS if OWN + name in frame.columns]


def _parts(frame: DataFrame) -> int:
    """The number of partitions to shuffle into. Each partition has far fewer bytes than a task should write.

    Spark joins small partitions, but it splits a partition that is too large into pieces, each with a part of every
    window: with few, large partitions each window would become many files. With more than `_EXACT_PARTS` partitions,
    Spark only knows their mean size, and would not notice that one window has most of the rows.
    """
    conf = frame.sparkSession.conf
    most, least = (
        int(_setting(frame.sparkSession, _EXACT_PARTS, "2000")),
        int(conf.get("spark.sql.shuffle.partitions") or 1),
    )
    size = bytes_of(frame)
    if size is None:
        return min(most, _UNKNOWN_PARTS)
    task = _bytes(str(conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes")))
    return max(min(_PARTS_PER_TASK * size // task, most), least)


def _setting(spark: SparkSession, name: str, default: str) -> str:
    try:
        return spark.conf.get(name, default) or default
    except PySparkException:
        return default


def _bytes(text: str) -> int:
    """Parse a size in Spark's settings, such as 64m, 64MB, 67108864b or 67108864, into bytes."""
    number = text.lower().rstrip("b")
    scale = {"k": 10, "m": 20, "g": 30, "t": 40, "p": 50}.get(number[-1:])
    return max(int(number) if scale is None else int(number[:-1]) << scale, 1)


def write(frame: DataFrame, uri: str) -> None:
    """Write the rows of `messages` to a folder."""
    writer = frame.write.partitionBy(WINDOW).options(**_OPTIONS).option("maxRecordsPerFile", _MAX_ROWS)
    writer.parquet(uri)


def looked_at(spark: SparkSession, stage: Stage, attempt: str) -> list[WrittenFile]:
    """All delay files of an attempt. Executors read them to compute their checksums.

    The server imports the same content only once. If several files are equal, all but the first are replaced by copies
    that contain a number, which readers ignore. Raises JobFailed.
    """
    paths = [name for name in stage.files(attempt) if _IN_ATTEMPT.fullmatch(name)]
    written_files = _looked_at(spark, stage, [(path, 0) for path in paths])
    by_content: dict[str, list[WrittenFile]] = defaultdict(list)
    for one in written_files:
        by_content[one.sha256].append(one)
    if equal := [(one.path, number) for some in by_content.values() for number, one in enumerate(some) if number]:
        twins = {path for path, _ in equal}
        written_files = [one for one in written_files if one.path not in twins] + _looked_at(spark, stage, equal)
        for path in twins:
            stage.remove(path)
    if len({one.sha256 for one in written_files}) < len(paths):
        where = stage.path(attempt)
        raise JobFailed(f"two files in {where} have the same content, which is imported once: nothing is scheduled")
    return sorted(written_files, key=lambda one: (one.window, one.path))


def _looked_at(spark: SparkSession, stage: Stage, paths: Sequence[tuple[str, int]]) -> list[WrittenFile]:
    """The files at these paths. If a path has a number other than 0, the file is first copied with that number."""
    if not paths:
        return []
    listed = spark.createDataFrame(list(paths), "path string, number int").repartition(tasks_for(spark, len(paths)))
    rows: Sequence[pa.RecordBatch] = listed.mapInArrow(_look_in(stage), _SCHEMA).toArrow().to_batches()
    return sorted((WrittenFile(**row) for batch in rows for row in batch.to_pylist()), key=lambda one: one.path)


def _look_in(stage: Stage) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            files = [_look(stage, path, number) for path, number in zip(*batch.to_pydict().values(), strict=True)]
            yield pa.RecordBatch.from_pylist([asdict(one) for one in files])

    return look


def _look(stage: Stage, path: str, number: int) -> WrittenFile:
    if number:
        path = _numbered(stage, path, number)
    with stage.local(path) as file:
        summary = summary_of(file)
    return WrittenFile(path, summary.sha256, summary.size, summary.window, summary.rows)


def _numbered(stage: Stage, path: str, number: int) -> str:
    """Copy a Parquet file and insert a number between its last page and its footer, where readers skip unknown bytes.

    The name of the copy contains the number, so a repeated task makes the same copy.
    """
    with stage.local(path) as file:
        content = file.read_bytes()
    footer = len(content) - _FOOTER_BYTES - int.from_bytes(content[-8:-4], "little")
    copy = f"{path.removesuffix('.parquet')}-{number}.parquet"
    stage.write(copy, content[:footer] + number.to_bytes(8, "little") + content[footer:])
    return copy
