"""A history whose tables have a log that says which files count: Delta Lake and Apache Iceberg.

    deliveries/data/batch=0000000007-.../date=2028-01-01/part-....parquet
    deliveries/_delta_log/, or deliveries/metadata/     the log

Spark writes Parquet files, as it does for any table, and the format's own Java library commits them in one transaction,
with the batch's number in it. The libraries that go through Spark's SQL are built for one version of Spark each; these
two parts, Delta's Kernel and Iceberg's core, are not. Files that were never committed count nowhere.
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
"""How long what was replaced can still be read by who began before."""


class DataFile(NamedTuple):
    """A Parquet file. `modified` in epoch ms, `date` as its folder says it."""

    uri: str
    size: int
    modified: int
    date: str


class Log(Protocol):
    """The log of one table."""

    def make(self) -> None:
        """Make the table, unless it is there."""

    def last(self) -> int | None:
        """The number of the last batch that was committed."""

    def files(self) -> list[DataFile]:
        """The files that count now."""

    def commit(self, number: int | None, added: Sequence[DataFile], removed: Sequence[DataFile]) -> None:
        """Make `added` files count, and `removed` ones not. `number`: of a batch; None where rows only change files."""

    def forget(self) -> None:
        """Drop what tells only of more than `KEPT_MS` ago."""


class CommittedFormat:
    """See `Format`. `path` is a URI, `logs` those of the kinds."""

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
        # Looked up once: one job adds batches, and joining files takes none away.
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
        """Write the files of these rows into a folder of their own."""
        # Named like a partition, or Spark would not read several such folders at once.
        folder = f"{self._data(kind)}/batch={name}-{uuid.uuid4().hex}"
        numbered = [
            # The number of a column in Iceberg's schema; Delta knows columns by their names.
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
        """Let one process at a time commit on a disk of this machine: a rename there replaces what another one put."""
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
    """Groups of files that are joined at once: two or more of each day, at most `below_bytes` together."""
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
    """Raises BadInput where Spark does not have the class. `package`: where it is, by its Maven coordinates."""
    java: Any = spark._jvm
    loader = java.Thread.currentThread().getContextClassLoader()
    try:
        java.Class.forName(class_name, False, loader)
    except Py4JJavaError as error:
        raise BadInput(
            f"Spark has no package for {name}: say --conf spark.jars.packages={package}, or put its jars into the "
            f"folder {JARS_VARIABLE} (docs/guides/pipeline/history.md, Formats)"
        ) from error
