"""A history in plain Parquet files: a folder per batch, which is there as a whole or not at all.

    deliveries/batch=0000000007/date=2028-01-01/part-....parquet
    outcomes/batch=0000000007/date=2028-01-01/part-....parquet
    deliveries/batch=0000000000-0000000006/...     batches that were merged
    _staging/, _merging/                           what is being written

A batch is written below `_staging` and renamed. A batch that is run again after a crash reads the same offsets, finds
its folder and writes nothing, so every record is in the table once. Spark's own file sink keeps a log beside its files
instead: one table per query, its files cannot be merged, and other readers see what the log does not list.

A merged folder appears by one rename, and from then on what it holds does not count elsewhere, although its sources
are removed after that: whoever lists the folders once, and leaves out those that another one holds (`batches.py`; for
SQL see docs/guides/pipeline/history.md), reads each row once at any moment.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from duemq.model.failpoint import Failpoint
from duemq.pipeline.errors import BadInput
from duemq.pipeline.files.patterns import exact
from duemq.pipeline.history.formats.base import SCHEMAS, arranged, check_joined, columns, neighbours, writing
from duemq.pipeline.history.formats.batches import BatchFolder, holds, named, standing

_STAGING, _MERGING = "_staging", "_merging"
_ATOMIC: Final = ("file", "hdfs", "viewfs", "webhdfs", "abfs", "abfss")  # a folder is renamed at once or not at all


class Parquet:
    """See `Format`. `path` is a URI."""

    def __init__(self, spark: SparkSession, path: str, failpoint: Failpoint) -> None:
        self._spark, self._path, self._failpoint = spark, path, failpoint
        java: Any = spark._jvm
        self._java = java
        self._files: Any = self._at().getFileSystem(spark._jsc.hadoopConfiguration())
        self._there: dict[str, list[BatchFolder]] = {}

    def _at(self, *parts: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path("/".join((self._path, *parts)))

    # --- adding -------------------------------------------------------------------------------------------------------

    def make(self) -> None:
        scheme = self._path.partition(":")[0]
        if scheme not in _ATOMIC:
            raise BadInput(
                f"{self._path}: {scheme}: does not rename a folder at once, so a batch could be there in part: "
                "take --format delta or iceberg there"
            )
        self._files.delete(self._at(_STAGING), True)
        for kind in SCHEMAS:
            self._files.mkdirs(self._at(kind))
            self._remove_merged(kind)

    def is_empty(self) -> bool:
        return not any(self._all(kind) for kind in SCHEMAS)

    def has(self, kind: str, number: int) -> bool:
        # Listed once: nobody else adds batches, and merging takes none away.
        if kind not in self._there:
            self._there[kind] = self.batches(kind)
        return holds(self._there[kind], number)

    def add(self, kind: str, number: int, rows: DataFrame) -> None:
        """Add a batch; one without rows leaves no folder."""
        if not self.has(kind, number):
            self._put(kind, BatchFolder(number, number), rows, _STAGING)
            self._there[kind] = standing([*self._there[kind], BatchFolder(number, number)])

    def _put(self, kind: str, batches: BatchFolder, rows: DataFrame, below: str, file_bytes: int | None = None) -> None:
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
        """Rename a folder to a name that is free: where another process has put the same batch there meanwhile, that
        one stands."""
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

    def _read(self, kind: str, batches: Sequence[BatchFolder]) -> DataFrame:
        if not batches:
            return self._spark.createDataFrame([], SCHEMAS[kind])
        base = f"{self._path}/{kind}"
        reader = self._spark.read.schema(SCHEMAS[kind]).option("basePath", base)
        return reader.parquet(*(exact(f"{base}/{one.name}") for one in batches)).select(columns(kind))

    def batches(self, kind: str) -> list[BatchFolder]:
        """The folders that count: none that another one holds as well."""
        return standing(self._all(kind))

    def _all(self, kind: str) -> list[BatchFolder]:
        if not self._files.exists(self._at(kind)):
            return []
        folders = (named(status.getPath().getName()) for status in self._files.listStatus(self._at(kind)))
        return [one for one in folders if one is not None]

    # --- merging ------------------------------------------------------------------------------------------------------

    def compact(self, kind: str, below_bytes: int) -> tuple[int, int]:
        """Merge folders beside one another that together have less than so many bytes.

        Nobody else may be merging. Who reads the files while they are replaced has to ask again.
        """
        self._files.delete(self._at(_MERGING), True)
        self._remove_merged(kind)

        def size(one: BatchFolder) -> int:
            return int(self._files.getContentSummary(self._at(kind, one.name)).getLength())

        groups = neighbours(self.batches(kind), size, below_bytes)
        for group in groups:
            self._put(kind, BatchFolder(group[0].first, group[-1].last), self._read(kind, group), _MERGING, below_bytes)
            self._remove_merged(kind)
        return sum(map(len, groups)), len(groups)

    def _remove_merged(self, kind: str) -> None:
        folders = self._all(kind)
        survivors = set(standing(folders))
        for one in folders:
            if one not in survivors:
                self._files.delete(self._at(kind, one.name), True)
