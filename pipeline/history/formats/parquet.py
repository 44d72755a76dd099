"""A history in plain Parquet files: a folder per batch, which appears atomically.

    deliveries/batch=0000000007/date=2028-01-01/part-....parquet
    outcomes/batch=0000000007/date=2028-01-01/part-....parquet
    deliveries/batch=0000000000-0000000006/...     merged batches
    _staging/, _merging/                           unfinished folders

A batch is written below `_staging` and then renamed. If a batch is repeated after a crash, it reads the same offsets,
finds its folder and writes nothing, so every record is in the table once. Spark's own file sink is not used, because it
keeps a log of its files: only one query can write to the table, files cannot be merged, and other readers also see
files that are not in the log.

A merged folder appears by one rename. Its sources are removed later, and no longer count from then on. A reader gets
each row once at any moment if it lists the folders once and skips those whose batches are in another folder
(`standing`; for SQL see docs/guides/pipeline/history.md).
"""

from __future__ import annotations

import re
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from duemq.model.failpoint import Failpoint
from duemq.pipeline.errors import BadInput
from duemq.pipeline.files.patterns import exact
from duemq.pipeline.history.formats.base import SCHEMAS, arranged, check_joined, columns, neighbours, writing

_NAME: Final = re.compile(r"batch=(\d+)(?:-(\d+))?")
_DIGITS: Final = 10
_STAGING, _MERGING = "_staging", "_merging"
_ATOMIC: Final = ("file", "hdfs", "viewfs", "webhdfs", "abfs", "abfss")  # renames of folders are atomic


class Batches(NamedTuple):
    """A folder with all rows of the batches `first` to `last`."""

    first: int
    last: int

    @property
    def name(self) -> str:
        first, last = (f"{number:0{_DIGITS}d}" for number in self)
        return f"batch={first}" if self.first == self.last else f"batch={first}-{last}"


def named(name: str) -> Batches | None:
    """The batches in the folder with this name; None if it is another kind of folder."""
    match = _NAME.fullmatch(name)
    return Batches(int(match[1]), int(match[2] or match[1])) if match else None


def standing(folders: Iterable[Batches]) -> list[Batches]:
    """The folders whose batches are not in another one, in order: a merged folder replaces its sources."""
    survivors: list[Batches] = []
    end = -1
    for one in sorted(folders, key=lambda one: (one.first, -one.last)):
        if one.last > end:
            survivors.append(one)
            end = one.last
    return survivors


def holds(folders: Sequence[Batches], number: int) -> bool:
    """Whether a batch is in one of the folders, which must come from `standing`."""
    at = bisect_right(folders, number, key=lambda one: one.first)
    return at > 0 and number <= folders[at - 1].last


class Parquet:
    """See `Format`. `path`: a URI."""

    def __init__(self, spark: SparkSession, path: str, failpoint: Failpoint) -> None:
        self._spark, self._path, self._failpoint = spark, path, failpoint
        java: Any = spark._jvm
        self._java = java
        self._files: Any = self._at().getFileSystem(spark._jsc.hadoopConfiguration())
        self._there: dict[str, list[Batches]] = {}

    def _at(self, *parts: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path("/".join((self._path, *parts)))

    # --- adding -------------------------------------------------------------------------------------------------------

    def make(self) -> None:
        scheme = self._path.partition(":")[0]
        if scheme not in _ATOMIC:
            raise BadInput(
                f"{self._path}: {scheme}: does not rename a folder atomically, so a batch could be incomplete: "
                "use --format delta or iceberg there"
            )
        self._files.delete(self._at(_STAGING), True)
        for kind in SCHEMAS:
            self._files.mkdirs(self._at(kind))
            self._remove_merged(kind)

    def is_empty(self) -> bool:
        return not any(self._all(kind) for kind in SCHEMAS)

    def has(self, kind: str, number: int) -> bool:
        # The folders are listed only once: no other job adds batches, and merging removes none.
        if kind not in self._there:
            self._there[kind] = self.batches(kind)
        return holds(self._there[kind], number)

    def add(self, kind: str, number: int, rows: DataFrame) -> None:
        """Add a batch. A batch without rows leaves no folder."""
        if not self.has(kind, number):
            self._put(kind, Batches(number, number), rows, _STAGING)
            self._there[kind] = standing([*self._there[kind], Batches(number, number)])

    def _put(self, kind: str, batches: Batches, rows: DataFrame, below: str, file_bytes: int | None = None) -> None:
        staging = f"{below}/{kind}-{batches.name}-{uuid.uuid4().hex}"
        with writing(rows.sparkSession, file_bytes):
            arranged(kind, rows).write.partitionBy("date").parquet(f"{self._path}/{staging}")
        self._failpoint(f"written {kind}")
        if below == _MERGING:
            check_joined(kind, rows, self._spark.read.schema(SCHEMAS[kind]).parquet(f"{self._path}/{staging}"))
        if any(status.isDirectory() for status in self._files.listStatus(self._at(staging))):
            self._files.mkdirs(self._at(kind))
            self._rename(self._at(staging), self._at(kind, batches.name))
        self._failpoint(f"committed {kind}")
        self._files.delete(self._at(staging), True)

    def _rename(self, old: Any, new: Any) -> None:
        """Rename a folder to an unused name. If another process was faster with the same batch, its folder stays."""
        context = self._java.org.apache.hadoop.fs.FileContext.getFileContext(
            new.toUri(), self._spark._jsc.hadoopConfiguration()
        )
        gateway = self._spark.sparkContext._gateway
        assert gateway is not None
        options = gateway.new_array(self._java.org.apache.hadoop.fs.Options.Rename, 0)
        try:
            context.rename(old, new, options)
        except Py4JJavaError:
            if not self._files.exists(new):
                raise

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, kind: str) -> DataFrame:
        return self._read(kind, self.batches(kind))

    def _read(self, kind: str, batches: Sequence[Batches]) -> DataFrame:
        if not batches:
            return self._spark.createDataFrame([], SCHEMAS[kind])
        base = f"{self._path}/{kind}"
        reader = self._spark.read.schema(SCHEMAS[kind]).option("basePath", base)
        return reader.parquet(*(exact(f"{base}/{one.name}") for one in batches)).select(columns(kind))

    def batches(self, kind: str) -> list[Batches]:
        """The folders whose batches are not in another one."""
        return standing(self._all(kind))

    def _all(self, kind: str) -> list[Batches]:
        if not self._files.exists(self._at(kind)):
            return []
        folders = (named(status.getPath().getName()) for status in self._files.listStatus(self._at(kind)))
        return [one for one in folders if one is not None]

    # --- merging ------------------------------------------------------------------------------------------------------

    def compact(self, kind: str, below_bytes: int) -> tuple[int, int]:
        """See `Format`. Merges neighbouring folders. Readers that have listed the old folders may have to try again."""
        self._files.delete(self._at(_MERGING), True)
        self._remove_merged(kind)

        def size(one: Batches) -> int:
            return int(self._files.getContentSummary(self._at(kind, one.name)).getLength())

        groups = neighbours(self.batches(kind), size, below_bytes)
        for group in groups:
            self._put(kind, Batches(group[0].first, group[-1].last), self._read(kind, group), _MERGING, below_bytes)
            self._remove_merged(kind)
        return sum(map(len, groups)), len(groups)

    def _remove_merged(self, kind: str) -> None:
        folders = self._all(kind)
        survivors = set(standing(folders))
        for one in folders:
            if one not in survivors:
                self._files.delete(self._at(kind, one.name), True)
