"""What a Spark session has: whether the machines that will do the work can do it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

_SCHEMA = StructType([StructField(name, StringType()) for name in ("executor", "python", "duemq", "pyarrow", "error")])


@dataclass(frozen=True, slots=True)
class Worker:
    """The Python of one executor. `error`: why it cannot run duemq's part of a job; empty where it can."""

    executor: str
    python: str
    duemq: str
    pyarrow: str
    error: str


def workers(spark: SparkSession, tasks: int) -> list[Worker]:
    """Those that took part in so many tasks, sorted."""
    found = spark.range(0, tasks, 1, tasks).mapInArrow(_look, _SCHEMA).distinct().collect()
    return sorted((Worker(**row.asDict()) for row in found), key=lambda worker: worker.executor)


def versions(spark: SparkSession) -> dict[str, str]:
    """Of Spark and Java, and where the work is done."""
    context = spark.sparkContext
    java = context._jvm.System.getProperty("java.version")  # type: ignore[union-attr]
    return {"spark": spark.version, "java": java, "master": context.master, "application": context.applicationId}


def has_connector(spark: SparkSession) -> bool:
    """Whether Spark can read Kafka."""
    try:
        spark.sparkContext._jvm.Class.forName(  # type: ignore[union-attr]
            "org.apache.spark.sql.kafka010.KafkaSourceProvider", False,
            spark.sparkContext._jvm.Thread.currentThread().getContextClassLoader(),  # type: ignore[union-attr]
        )  # fmt: skip
    except Exception:  # Py4J wraps ClassNotFoundException
        return False
    return True


def _look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    error = ""
    try:
        import duemq.client
        import duemq.storage.intake  # noqa: F401
    except Exception as found:
        error = f"{type(found).__name__}: {found}"
    try:
        ours = version("duemq")
    except PackageNotFoundError:
        ours = ""
    # A worker's folder is that of its executor; on one machine all share a name.
    where = f"{platform.node()} {os.path.basename(os.getcwd())}"
    row = [where, platform.python_version(), ours, pa.__version__, error]
    yield pa.RecordBatch.from_arrays([pa.array([text]) for text in row], names=_SCHEMA.names)
