"""A history in tables of Apache Iceberg, committed by Iceberg's core. The folder is their catalog (type `hadoop`).

A batch is one commit. Each snapshot has the number of the last batch as a property (`duemq-batch`), which is checked
before a commit. Every commit writes the list of all snapshots, so the number of snapshots is limited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson
from pyspark.sql import SparkSession

from duemq.model.failpoint import Failpoint
from duemq.pipeline.errors import JobFailed
from duemq.pipeline.history.formats.base import SCHEMAS
from duemq.pipeline.history.formats.committed import KEPT_MS, CommittedFormat, DataFile, need

PROPERTY: Final = "duemq-batch"
_KEPT, _MORE = 1_000, 100
"""How many snapshots are kept, and how many more may exist before old ones are removed."""
PACKAGE: Final = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_CLASS: Final = "org.apache.iceberg.hadoop.HadoopCatalog"
_TYPES: Final = {"bigint": "long"}  # Iceberg's names for types that have another name in Spark
_PROPERTIES: Final = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


def iceberg(spark: SparkSession, path: str, failpoint: Failpoint) -> CommittedFormat:
    """The format. Raises BadInput if Spark does not have its package."""
    need(spark, "Iceberg", _CLASS, PACKAGE)
    return CommittedFormat(spark, path, failpoint, {kind: IcebergLog(spark, path, kind) for kind in SCHEMAS})


class IcebergLog:
    """See `Log`."""

    def __init__(self, spark: SparkSession, path: str, kind: str) -> None:
        java: Any = spark._jvm
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        self._java, self._iceberg, self._kind, self._path = java, java.org.apache.iceberg, kind, path
        self._catalog = self._iceberg.hadoop.HadoopCatalog(spark._jsc.hadoopConfiguration(), path)
        names = gateway.new_array(java.String, 1)
        names[0] = kind
        self._name = self._iceberg.catalog.TableIdentifier.of(names)

    def make(self) -> None:
        if self._catalog.tableExists(self._name):
            return
        fields = [
            {"id": number, "name": name, "required": False, "type": _TYPES.get(kind, kind)}
            for number, (name, kind) in enumerate(map(str.split, SCHEMAS[self._kind].split(", ")), 1)
        ]
        text = orjson.dumps({"type": "struct", "schema-id": 0, "fields": fields}).decode()
        schema = self._iceberg.SchemaParser.fromJson(text)
        properties = self._java.java.util.HashMap()
        for name, value in _PROPERTIES.items():
            properties.put(name, value)
        spec = self._iceberg.PartitionSpec.builderFor(schema).identity("date").build()
        self._catalog.createTable(self._name, schema, spec, properties)

    def last(self) -> int | None:
        table = self._table()
        snapshot = table.currentSnapshot()
        if snapshot is None:
            return None
        while snapshot is not None:
            if (text := snapshot.summary().get(PROPERTY)) is not None:
                return int(text)
            parent = snapshot.parentId()  # another tool made this snapshot
            snapshot = None if parent is None else table.snapshot(parent)
        raise JobFailed(
            f"{self._path}/{self._kind}: no snapshot has the property {PROPERTY} any more, so its batches are "
            "unknown: begin a new table beside this one"
        )

    def files(self) -> list[DataFile]:
        return [
            DataFile(file.location(), file.fileSizeInBytes(), 0, str(self._day(file.partition())))
            for file in self._data_files(self._table())
        ]

    def commit(self, number: int | None, added: Sequence[DataFile], removed: Sequence[DataFile]) -> None:
        last = self.last() if number is None else number
        table = self._table()
        update = table.newRewrite() if removed else table.newAppend()
        if removed:
            uris = {file.uri for file in removed}
            for file in self._data_files(table):
                if file.location() in uris:
                    update.deleteFile(file)
        for one in added:
            (update.addFile if removed else update.appendFile)(self._data_file(table, one))
        update.set(PROPERTY, str(last))
        update.commit()
        if table.snapshots().size() > _KEPT + _MORE:
            self.forget()

    def forget(self) -> None:
        table = self._table()
        times = sorted(one.timestampMillis() for one in table.snapshots())
        before = max([self._java.System.currentTimeMillis() - KEPT_MS, *times[-_KEPT:][:1]])
        table.expireSnapshots().expireOlderThan(before).retainLast(1).commit()

    def _table(self) -> Any:
        return self._catalog.loadTable(self._name)

    def _data_files(self, table: Any) -> list[Any]:
        tasks = table.newScan().planFiles()
        try:
            each, files = tasks.iterator(), []
            while each.hasNext():
                files.append(each.next().file())
            return files
        finally:
            tasks.close()

    def _data_file(self, table: Any, file: DataFile) -> Any:
        source = table.io().newInputFile(file.uri)
        metrics = self._iceberg.parquet.ParquetUtil.fileMetrics(source, self._iceberg.MetricsConfig.forTable(table))
        builder = self._iceberg.DataFiles.builder(table.spec()).withInputFile(source).withFormat("PARQUET")
        return builder.withPartitionPath(f"date={file.date}").withMetrics(metrics).build()

    def _day(self, partition: Any) -> str:
        days = partition.get(0, self._java.Class.forName("java.lang.Integer"))
        text: str = self._java.java.time.LocalDate.ofEpochDay(days).toString()
        return text
