"""The table of the history: Parquet in two folders, `deliveries` and `fates`, a folder per batch in each.

    deliveries/batch=0000000007/date=2028-01-01/topic=orders/part-....parquet
    fates/batch=0000000007/date=2028-01-01/fate=cancelled/part-....parquet
    deliveries/batch=0000000000-0000000006/...     batches that were merged
    _checkpoint/                                   Spark's: up to where the topics were read
    _staging/, _merging/                           what is being written

A batch is written below `_staging` and renamed, which happens or does not: its folder is there as a whole or not at
all. A batch that is run again after a crash reads the same offsets, finds its folder and writes nothing, so every
record is in the table once. Spark's own file sink keeps a log beside its files instead: one table per query, its files
cannot be merged, and other readers see what the log does not list.

Renames are atomic on local disks and HDFS. Batches of object stores need a file system on top that has such a rename.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from duemq.model.fault import Fault, no_fault
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.history.rows import DELIVERIES, FATES

CHECKPOINT, _STAGING, _MERGING = "_checkpoint", "_staging", "_merging"
SCHEMAS: Final = {"deliveries": DELIVERIES, "fates": FATES}
PARTITIONS: Final = {"deliveries": ("date", "topic"), "fates": ("date", "fate")}
_SORTED: Final = {"deliveries": "delivered_ms", "fates": "at_ms"}
_NAME = re.compile(r"batch=(\d+)(?:-(\d+))?")
_DIGITS: Final = 10


class Batches(NamedTuple):
    """A folder of the table, with all rows of the batches `first` to `last`."""

    first: int
    last: int

    @property
    def name(self) -> str:
        first, last = (f"{number:0{_DIGITS}d}" for number in self)
        return f"batch={first}" if self.first == self.last else f"batch={first}-{last}"

    def holds(self, other: Batches) -> bool:
        return self.first <= other.first and other.last <= self.last


class HistoryTable:
    """A table below `path`: a folder, or a URI that Spark's Hadoop knows. One job at a time may write to it."""

    def __init__(self, spark: SparkSession, path: str, fault: Fault = no_fault) -> None:
        self._spark, self._fault = spark, fault
        jvm = spark._jvm
        assert jvm is not None
        self._jvm: Any = jvm
        root = self._path(path)
        files = root.getFileSystem(spark._jsc.hadoopConfiguration())
        self._files: Any = files
        self.path: str = files.makeQualified(root).toString()

    def _path(self, *parts: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path("/".join(parts))

    @property
    def checkpoint(self) -> str:
        return f"{self.path}/{CHECKPOINT}"

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, kind: str) -> DataFrame:
        """All rows, as `SCHEMAS` says. `kind`: deliveries or fates. Raises BadInput where there is no such table."""
        if not self._files.exists(self._path(self.path)):
            raise BadInput(f"{self.path}: there is no history; `duemq spark history` makes one")
        folders = [f"{self.path}/{kind}/{one.name}" for one in self.batches(kind)]
        if not folders:
            return self._spark.createDataFrame([], SCHEMAS[kind])
        reader = self._spark.read.schema(SCHEMAS[kind]).option("basePath", f"{self.path}/{kind}")
        return reader.parquet(*folders).select([field.split()[0] for field in SCHEMAS[kind].split(", ")])

    def batches(self, kind: str) -> list[Batches]:
        """The folders that count: none that another one holds as well."""
        found = self._all(kind)
        return [one for one in found if not any(other != one and other.holds(one) for other in found)]

    def _all(self, kind: str) -> list[Batches]:
        return sorted(
            Batches(int(match[1]), int(match[2] or match[1]))
            for name in self._names(kind)
            if (match := _NAME.fullmatch(name))
        )

    def _names(self, folder: str) -> list[str]:
        path = self._path(self.path, folder)
        if not self._files.exists(path):
            return []
        return [status.getPath().getName() for status in self._files.listStatus(path)]

    # --- writing ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Before a job goes on: remove what a crash left, and refuse a table whose checkpoint is gone."""
        started = self._files.exists(self._path(self.checkpoint, "metadata"))
        if not started and any(self._all(kind) for kind in SCHEMAS):
            raise JobFailed(
                f"{self.path} has batches, but no {CHECKPOINT}, so nobody knows up to where the topics were read: "
                "restore it, or begin a new table beside this one"
            )
        self._files.delete(self._path(self.path, _STAGING), True)
        for kind in SCHEMAS:
            self._remove_merged(kind)

    def has(self, kind: str, number: int) -> bool:
        """Whether a batch is in the table."""
        return any(one.holds(Batches(number, number)) for one in self._all(kind))

    def add(self, kind: str, number: int, rows: DataFrame) -> None:
        """Write a batch, unless it is there. One without rows leaves no folder."""
        if not self.has(kind, number):
            self._put(kind, Batches(number, number), rows, _STAGING)

    def _put(self, kind: str, batches: Batches, rows: DataFrame, below: str) -> None:
        staging = f"{self.path}/{below}/{kind}-{batches.name}-{uuid.uuid4().hex}"
        by = PARTITIONS[kind]
        rows.repartition(*by).sortWithinPartitions(*by, _SORTED[kind]).write.partitionBy(*by).parquet(staging)
        self._fault(f"written {kind}")
        if any(status.isDirectory() for status in self._files.listStatus(self._path(staging))):
            self._files.mkdirs(self._path(self.path, kind))
            self._rename(staging, f"{self.path}/{kind}/{batches.name}")
        self._fault(f"named {kind}")
        self._files.delete(self._path(staging), True)

    def _rename(self, old: str, new: str) -> None:
        """To a name that is free: where another process has put the same batch there meanwhile, that one stands."""
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            self._path(new).toUri(), self._spark._jsc.hadoopConfiguration()
        )
        gateway = self._spark.sparkContext._gateway
        assert gateway is not None
        options = gateway.new_array(self._jvm.org.apache.hadoop.fs.Options.Rename, 0)
        try:
            context.rename(self._path(old), self._path(new), options)
        except Py4JJavaError:
            if not self._files.exists(self._path(new)):
                raise

    # --- merging ------------------------------------------------------------------------------------------------------

    def merge(self, kind: str, below_bytes: int) -> tuple[int, int]:
        """Merge folders beside one another that together have less than so many bytes; how many became how many.

        A job may be adding batches meanwhile, but nobody else may be merging.
        Who reads the files while they are replaced has to ask again.
        """
        self._files.delete(self._path(self.path, _MERGING), True)
        self._remove_merged(kind)
        before = self.batches(kind)
        groups = self._groups(kind, before, below_bytes)
        for group in groups:
            folders = [f"{self.path}/{kind}/{one.name}" for one in group]
            reader = self._spark.read.schema(SCHEMAS[kind]).option("basePath", f"{self.path}/{kind}")
            names = [field.split()[0] for field in SCHEMAS[kind].split(", ")]
            rows = reader.parquet(*folders).select(names)
            self._put(kind, Batches(group[0].first, group[-1].last), rows, _MERGING)
            self._remove_merged(kind)
        return sum(map(len, groups)), len(groups)

    def _groups(self, kind: str, batches: Sequence[Batches], below_bytes: int) -> list[list[Batches]]:
        groups: list[list[Batches]] = [[]]
        size = 0
        for one in batches:
            more = self._files.getContentSummary(self._path(self.path, kind, one.name)).getLength()
            if groups[-1] and size + more > below_bytes:
                groups.append([])
                size = 0
            groups[-1].append(one)
            size += more
        return [group for group in groups if len(group) > 1]

    def _remove_merged(self, kind: str) -> None:
        kept = set(self.batches(kind))
        for one in self._all(kind):
            if one not in kept:
                self._files.delete(self._path(self.path, kind, one.name), True)
