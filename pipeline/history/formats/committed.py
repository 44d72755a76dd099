"""A history in tables that have a log of their files: Delta Lake and Apache Iceberg.

    deliveries/data/batch=0000000007-.../date=2028-01-01/part-....parquet
    deliveries/_delta_log/, or deliveries/metadata/     the log

Spark writes plain Parquet files. The format's Java library (Delta's Kernel or Iceberg's core) commits them in one
transaction with the number of the batch. Unlike the formats' SQL extensions, these libraries do not depend on a version
of Spark. Readers ignore files that were never committed.
"""

from __future__ import annotations

import fcntl
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duemq.model.failpoint import Failpoint
from duemq.pipeline.errors import BadInput
from duemq.pipeline.files.patterns import exact
from duemq.pipeline.files.uris import hadoop_path
from duemq.pipeline.history.formats.base import SCHEMAS, arranged, check_joined, columns, neighbours, writing
from duemq.pipeline.spark.connector import JARS_VARIABLE

KEPT_MS: Final = 7 * 86_400_000
"""How long replaced files are kept for readers that have started before the replacement."""


class DataFile(NamedTuple):
    """A Parquet file. `modified`: epoch ms; `date`: taken from the name of its folder."""

    uri: str
    size: int
    modified: int
    date: str


class Log(Protocol):
    """The log of one table."""

    def make(self) -> None:
        """Create the table unless it exists."""

    def last(self) -> int | None:
        """The number of the last committed batch, or None if there is none."""

    def files(self) -> list[DataFile]:
        """The files that are in the table now."""

    def commit(self, number: int | None, added: Sequence[DataFile], removed: Sequence[DataFile]) -> None:
        """Add and remove files in one transaction. `number`: the batch; None if rows only move between files."""

    def forget(self) -> None:
        """Drop versions of the table that were replaced more than `KEPT_MS` ago."""


class CommittedFormat:
    """See `Format`. `path`: a URI; `logs`: the log for each kind of rows."""

    def __init__(self, spark: SparkSession, path: str, failpoint: Failpoint, logs: Mapping[str, Log]) -> None:
        self._spark, self._path, self._failpoint, self._logs = spark, path, failpoint, logs
        java: Any = spark._jvm
        self._java = java
        self._last: dict[str, int | None] = {}

    def make(self) -> None:
        for log in self._logs.values():
            log.make()

    def is_empty(self) -> bool:
        return all(log.last() is None for log in self._logs.values())

    def has(self, kind: str, number: int) -> bool:
        # The log is read only once: no other job adds batches, and joining files removes none.
        if kind not in self._last:
            self._last[kind] = self._logs[kind].last()
        return _holds(self._last[kind], number)

    def add(self, kind: str, number: int, rows: DataFrame) -> None:
        if self.has(kind, number):
            return
        added = self._write(kind, f"{number:010d}", rows)
        self._failpoint(f"written {kind}")
        with self._alone():
            if added and not _holds(self._logs[kind].last(), number):
                self._logs[kind].commit(number, added, ())
                self._last[kind] = number
        self._failpoint(f"committed {kind}")

    def read(self, kind: str) -> DataFrame:
        return self._read(kind, self._logs[kind].files())

    def compact(self, kind: str, below_bytes: int) -> tuple[int, int]:
        log, before, after = self._logs[kind], 0, 0
        for group in groups(log.files(), below_bytes):
            rows = self._read(kind, group)
            added = self._write(kind, "joined", rows, below_bytes)
            check_joined(kind, rows, self._read(kind, added))
            self._failpoint(f"joined {kind}")
            with self._alone():
                log.commit(None, added, group)
            self._failpoint(f"compacted {kind}")
            before, after = before + len(group), after + len(added)
        with self._alone():
            log.forget()
        return before, after

    def _data(self, kind: str) -> str:
        return f"{self._path}/{kind}/data"

    def _read(self, kind: str, files: Sequence[DataFile]) -> DataFrame:
        if not files:
            return self._spark.createDataFrame([], SCHEMAS[kind])
        reader = self._spark.read.schema(SCHEMAS[kind]).option("basePath", self._data(kind))
        return reader.parquet(*(exact(file.uri) for file in files)).select(columns(kind))

    def _write(self, kind: str, name: str, rows: DataFrame, file_bytes: int | None = None) -> list[DataFile]:
        """Write these rows to files in a new folder."""
        # The folder's name has the form of a partition: otherwise Spark cannot read several such folders at once.
        folder = f"{self._data(kind)}/batch={name}-{uuid.uuid4().hex}"
        numbered = [
            # Iceberg identifies columns by number, Delta by name.
            F.col(column).alias(column, metadata={"parquet.field.id": number})
            for number, column in enumerate(columns(kind), 1)
        ]
        with writing(rows.sparkSession, file_bytes):
            arranged(kind, rows).select(*numbered).write.partitionBy("date").parquet(folder)
        files, path = hadoop_path(self._spark, folder)
        listed = files.listFiles(path, True)
        data_files: list[DataFile] = []
        while listed.hasNext():
            status = listed.next()
            uri: str = status.getPath().toString()
            if date := re.search(r"/date=([^/]+)/[^/]+\.parquet$", uri):
                data_files.append(DataFile(uri, status.getLen(), status.getModificationTime(), date[1]))
        return data_files

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one process at a time commit on a local disk, because a rename there overwrites another commit."""
        if not self._path.startswith("file:"):
            yield
            return
        folder = Path(re.sub("^file:/+", "/", self._path))
        with (folder / "_lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _holds(last: int | None, number: int) -> bool:
    return last is not None and number <= last


def groups(files: Sequence[DataFile], below_bytes: int) -> list[list[DataFile]]:
    """Groups of files to join in one commit: two or more from each day, at most `below_bytes` in total."""
    ordered = sorted(files, key=lambda file: (file.date, file.modified, file.uri))
    file_groups: list[list[DataFile]] = [[]]
    room = below_bytes
    for _, of_day in groupby(ordered, lambda file: file.date):
        for part in neighbours(of_day, lambda file: file.size, below_bytes):
            size = sum(file.size for file in part)
            if size > room:
                file_groups.append([])
                room = below_bytes
            file_groups[-1] += part
            room -= size
    return [group for group in file_groups if group]


def need(spark: SparkSession, name: str, class_name: str, package: str) -> None:
    """Raise BadInput if Spark does not have the class. `package`: Maven coordinates, for the sentence."""
    java: Any = spark._jvm
    loader = java.Thread.currentThread().getContextClassLoader()
    try:
        java.Class.forName(class_name, False, loader)
    except Py4JJavaError as error:
        raise BadInput(
            f"Spark has no package for {name}: add --conf spark.jars.packages={package}, or put its jars into the "
            f"folder {JARS_VARIABLE} (docs/guides/pipeline/history.md, Formats)"
        ) from error
