"""Reads the pending messages in a backup, or in the data folder of a stopped server, as DataFrames.

Spark reads the delay files and stores. Only counts leave the executors: `shard, topic, second_ms, messages`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.storagelevel import StorageLevel

from duemq.model.errors import FolderRefused
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.files.patterns import exact
from duemq.pipeline.files.uris import uri_of
from duemq.pipeline.forecast import store
from duemq.pipeline.forecast.store import COUNTED, KEYS, SECOND_MS, StoreFiles
from duemq.pipeline.spark.failures import sentence_of
from duemq.storage.backup.backup import names, read_backup
from duemq.storage.data_folder import BACKUP, LOCK, RESTORE, read_info, take_lock

_KEY = ["shard", "due_ms", "offset", "row"]
_PLACE = r"/shards/(\d+)/far/\d+/a?(\d+)\.parquet$"
_SEALED, _IMPORTED = "due_ms bigint, offset bigint, row int, topic string", "due_ms bigint, topic string"
_VERIFY = "parquet.page.verify-checksum.enabled"
Scan = Callable[[int, Path], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class PendingMessages:
    """The pending messages. `rows`: shard, topic, second_ms, messages, in Spark's cache.

    `as_of_ms`: when the backup began, or the time of a stopped server's last cycle; 0 if it had none.
    """

    folder: Path
    as_of_ms: int
    shards: Sequence[StoreFiles]
    rows: DataFrame

    @property
    def messages(self) -> int:
        return sum(shard.pending for shard in self.shards)


@contextmanager
def pending(spark: SparkSession, folder: Path) -> Iterator[PendingMessages]:
    """The pending messages in a folder: a backup, a folder of backups (the newest is read), or the data folder of a
    stopped server.

    All executors must see the folder. Raises BadInput for another kind of folder or a folder that a running server has
    locked; JobFailed if the number of messages read differs from the number in the stores.
    """
    place = find(folder)
    with _folder_lock(place):
        shards = [store.describe(place / "shards" / f"{n:03d}") for n in range(read_info(place).shards)]
        with _read_errors():
            rows = counted(spark, shards).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with _read_errors():
                _compare(rows, shards)
            last = max((shard.at for shard in shards), default=0)
            yield PendingMessages(
                place, read_backup(place).made_at if (place / BACKUP).exists() else last, shards, rows
            )
        finally:
            rows.unpersist()


def folder_of(text: str) -> Path:
    """The folder that a path or a `file:` URI names. Raises BadInput for other URIs, as a store is read from a disk."""
    uri = uri_of(text)
    if not uri.startswith("file:"):
        raise BadInput(f"{text}: stores are read from a disk: name a folder that all executors see under the same path")
    return Path(re.sub("^file:/+", "/", uri))


def find(folder: Path) -> Path:
    """The folder itself, or the newest backup in it. Raises BadInput."""
    if (folder / RESTORE).exists():
        raise BadInput(f"{folder} is not complete: a restore was cut short. Run `duemq restore` again.")
    if folder.is_dir() and (backups := names(folder)):
        return folder / backups[-1]
    try:
        read_info(folder)
    except FolderRefused as error:
        raise BadInput(
            f"{error}. Name a backup, a folder of backups, or the data of a server that is stopped"
        ) from error
    return folder


@contextmanager
def _folder_lock(place: Path) -> Iterator[None]:
    """Lock a data folder, so that no server changes it. A backup never changes and needs no lock."""
    if (place / BACKUP).exists():
        yield
        return
    if not (place / LOCK).exists() and not os.access(place, os.W_OK):
        raise BadInput(f"{place}: it can only be read as the user of its server; or make a backup, and read that")
    try:
        lock = take_lock(place)
    except (FolderRefused, OSError) as error:
        raise BadInput(f"{error}. Or make a backup, and read that: `duemq backup INTO --data {place}`") from error
    try:
        yield
    finally:
        os.close(lock)


def counted(spark: SparkSession, shards: Sequence[StoreFiles]) -> DataFrame:
    """The number of pending messages per shard, topic and second (epoch ms)."""
    counts = _scan(spark, shards, store.count, COUNTED)
    if any(shard.files for shard in shards):
        messages = _in_files(spark, shards)
        if stale := [shard for shard in shards if shard.dropped]:
            exclusions = _scan(spark, stale, store.not_in_files, KEYS).distinct()
            messages = messages.join(exclusions, _KEY, "left_anti")
        second = F.col("due_ms") - F.col("due_ms") % SECOND_MS
        one = F.lit(1).cast("bigint").alias("messages")
        counts = counts.unionByName(messages.select("shard", "topic", second.alias("second_ms"), one))
    return counts.groupBy("shard", "topic", "second_ms").agg(F.sum("messages").alias("messages"))


def _in_files(spark: SparkSession, shards: Sequence[StoreFiles]) -> DataFrame:
    """The keys and topics of all rows in delay files, pending or not. Imported rows are numbered by position."""
    paths: dict[bool, list[str]] = {True: [], False: []}
    for shard in shards:
        for file in shard.files:
            uri = uri_of(str((shard.path / file.name).resolve()))
            paths[file.about.offset is None].append(exact(uri))
    frames = []
    for sealed, some in paths.items():
        if some:
            place = F.col("_metadata.file_path")
            offset = F.col("offset") if sealed else F.regexp_extract(place, _PLACE, 2).cast("bigint")
            row = F.col("row").cast("bigint") if sealed else F.col("_metadata.row_index")
            # If it is given a schema, Spark does not read footers on the driver.
            files = spark.read.schema(_SEALED if sealed else _IMPORTED).option(_VERIFY, "true").parquet(*some)
            frames.append(files.select(
                F.regexp_extract(place, _PLACE, 1).cast("int").alias("shard"),
                "due_ms", offset.alias("offset"), row.alias("row"), "topic",
            ))  # fmt: skip
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _scan(spark: SparkSession, shards: Sequence[StoreFiles], scan: Scan, schema: pa.Schema) -> DataFrame:
    """The batches from `scan` for each store, with a task per shard."""

    def each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for shard, path in zip(batch["shard"].to_pylist(), batch["path"].to_pylist(), strict=True):
                yield from scan(shard, Path(path))

    places = [(shard.shard, str(shard.path.resolve())) for shard in shards]
    frame = spark.createDataFrame(places, "shard int, path string").repartitionByRange(len(places), "shard")
    return frame.mapInArrow(each, from_arrow_schema(schema))


def _compare(rows: DataFrame, shards: Sequence[StoreFiles]) -> None:
    """Raise JobFailed if the number of messages read differs from the number in the stores."""
    sums = rows.groupBy("shard").agg(F.sum("messages").alias("messages")).collect()
    counts = {row.shard: row.messages for row in sums}
    for shard in shards:
        if (number := counts.get(shard.shard, 0)) != shard.pending:
            raise JobFailed(
                f"{shard.path}: {number:,} messages were read, but its store has {shard.pending:,}: it is damaged. "
                "Read another backup"
            )


@contextmanager
def _read_errors() -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise JobFailed(f"a store or a delay file cannot be read: {sentence_of(error, 'SparkException: [')}") from error
