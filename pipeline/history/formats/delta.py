"""A history in tables of Delta Lake, committed by Delta's Kernel.

A batch is one transaction with the id of an application and the number of the batch, as Delta's Spark connector writes
it for the options `txnAppId` and `txnVersion`. Delta refuses a number that is not greater than the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any, Final

from pyspark.sql import SparkSession

from duemq.model.failpoint import Failpoint
from duemq.pipeline.files.uris import hadoop_path
from duemq.pipeline.history.formats.base import SCHEMAS
from duemq.pipeline.history.formats.committed import CommittedFormat, DataFile, need

APPLICATION: Final = "duemq-history"
PACKAGE: Final = "io.delta:delta-kernel-api:4.4.0,io.delta:delta-kernel-defaults:4.4.0"
_CLASS: Final = "io.delta.kernel.defaults.engine.DefaultEngine"
_BY: Final = "duemq"


def delta(spark: SparkSession, path: str, failpoint: Failpoint) -> CommittedFormat:
    """The format. Raises BadInput if Spark does not have its package."""
    need(spark, "Delta", _CLASS, PACKAGE)
    return CommittedFormat(spark, path, failpoint, {kind: DeltaLog(spark, f"{path}/{kind}", kind) for kind in SCHEMAS})


class DeltaLog:
    """See `Log`."""

    def __init__(self, spark: SparkSession, uri: str, kind: str) -> None:
        self._spark, self._uri, self._kind = spark, uri, kind
        java: Any = spark._jvm
        self._java, self._kernel = java, java.io.delta.kernel
        self._engine = self._kernel.defaults.engine.DefaultEngine.create(spark._jsc.hadoopConfiguration())
        self._table = self._kernel.Table.forPath(self._engine, uri)

    def make(self) -> None:
        files, log = hadoop_path(self._spark, f"{self._uri}/_delta_log")
        if files.exists(log) and self._exists():
            return
        text = self._spark.createDataFrame([], SCHEMAS[self._kind]).schema.json()
        schema = self._kernel.internal.types.DataTypeJsonSerDe.deserializeStructType(text)
        builder = self._table.createTransactionBuilder(self._engine, _BY, self._kernel.Operation.CREATE_TABLE)
        builder = builder.withSchema(self._engine, schema).withPartitionColumns(self._engine, self._list(["date"]))
        builder.build(self._engine).commit(self._engine, self._kernel.utils.CloseableIterable.emptyIterable())

    def _exists(self) -> bool:
        """Whether the log has a commit: creating the table may have been interrupted before the first one."""
        files, commits = hadoop_path(self._spark, f"{self._uri}/_delta_log/*.json")
        statuses = files.globStatus(commits)
        return statuses is not None and len(statuses) > 0

    def last(self) -> int | None:
        version = self._snapshot().getLatestTransactionVersion(self._engine, APPLICATION)
        return int(version.get()) if version.isPresent() else None

    def files(self) -> list[DataFile]:
        utils = self._kernel.internal.InternalScanFileUtils
        return [
            DataFile(status.getPath(), status.getSize(), status.getModificationTime(),
                     utils.getPartitionValues(row).get("date"))
            for row in self._rows()
            for status in (utils.getAddFileStatus(row),)
        ]  # fmt: skip

    def commit(self, number: int | None, added: Sequence[DataFile], removed: Sequence[DataFile]) -> None:
        operation = self._kernel.Operation.STREAMING_UPDATE if number is not None else self._kernel.Operation.WRITE
        builder = self._table.createTransactionBuilder(self._engine, _BY, operation)
        if number is not None:
            builder = builder.withTransactionId(self._engine, APPLICATION, number)
        transaction = builder.build(self._engine)
        actions = [self._added(transaction, file, number is not None) for file in added]
        if removed:
            actions += self._removed({file.uri for file in removed})
        iterator = self._kernel.internal.util.Utils.toCloseableIterator(self._list(actions).iterator())
        done = transaction.commit(self._engine, self._kernel.utils.CloseableIterable.inMemoryIterable(iterator))
        for hook in done.getPostCommitHooks():  # such as checkpoints of the log
            hook.threadSafeInvoke(self._engine)

    def forget(self) -> None:
        """Do nothing: VACUUM removes replaced files."""

    def _added(self, transaction: Any, file: DataFile, new: bool) -> Any:
        optional, none = self._java.java.util.Optional, self._java.java.util.HashMap()
        rows = self._kernel.statistics.DataFileStatistics(self._count(file.uri), none, none, none, optional.empty())
        status = self._kernel.utils.DataFileStatus(file.uri, file.size, file.modified, optional.of(rows))
        values = self._java.java.util.HashMap()
        days = (date.fromisoformat(file.date) - date(1970, 1, 1)).days
        values.put("date", self._kernel.expressions.Literal.ofDate(days))
        row = self._kernel.internal.actions.AddFile.convertDataFileStatus(
            transaction.getSchema(self._engine), self._root(), status, values, new, none,
            optional.empty(), optional.empty(), optional.empty(),
        )  # fmt: skip
        return self._kernel.internal.actions.SingleAction.createAddFileSingleAction(row.toRow())

    def _removed(self, uris: set[str]) -> list[Any]:
        utils, now = self._kernel.internal.InternalScanFileUtils, self._java.System.currentTimeMillis()
        when = self._java.java.util.Optional.of(now)
        actions = self._kernel.internal.actions
        return [
            actions.SingleAction.createRemoveFileSingleAction(
                actions.AddFile(row.getStruct(utils.ADD_FILE_ORDINAL)).toRemoveFileRow(False, when)
            )
            for row in self._rows()
            if utils.getAddFileStatus(row).getPath() in uris
        ]

    def _rows(self) -> list[Any]:
        """The log's rows for the files that are in the table now."""
        batches = self._snapshot().getScanBuilder().build().getScanFiles(self._engine)
        scan_rows = []
        while batches.hasNext():
            rows = batches.next().getRows()
            while rows.hasNext():
                scan_rows.append(rows.next())
        return scan_rows

    def _snapshot(self) -> Any:
        return self._table.getLatestSnapshot(self._engine)

    def _root(self) -> Any:
        """The table's path as a `java.net.URI`, which quotes characters such as spaces."""
        return self._java.org.apache.hadoop.fs.Path(self._table.getPath(self._engine)).toUri()

    def _count(self, uri: str) -> int:
        """The number of rows in a Parquet file."""
        path = self._java.org.apache.hadoop.fs.Path(uri)
        conf = self._spark._jsc.hadoopConfiguration()
        file = self._java.org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(path, conf)
        reader = self._java.org.apache.parquet.hadoop.ParquetFileReader.open(file)
        try:
            return int(reader.getRecordCount())
        finally:
            reader.close()

    def _list(self, values: Sequence[Any]) -> Any:
        java_list = self._java.java.util.ArrayList()
        for value in values:
            java_list.add(value)
        return java_list
