"""Checks a Spark session: its versions, and whether every executor can run duemq."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from duemq.pipeline.errors import SparkUnavailable

_PYTHON_ERROR = re.compile(r"\w*(Error|Exception): ")
_SCHEMA = StructType([StructField(name, StringType()) for name in ("executor", "python", "duemq", "pyarrow")])


@dataclass(frozen=True, slots=True)
class SparkWorker:
    """The Python of one executor."""

    executor: str
    python: str
    duemq: str
    pyarrow: str


def workers(spark: SparkSession, tasks: int) -> list[SparkWorker]:
    """The executors that ran `tasks` tasks, sorted. Raises SparkUnavailable if one of them cannot run duemq."""
    try:
        rows = spark.range(0, tasks, 1, tasks).mapInArrow(_look, _SCHEMA).distinct().collect()
    except PySparkException as error:
        lines = [line for line in str(error).splitlines() if _PYTHON_ERROR.match(line.strip())] or [str(error)]
        raise SparkUnavailable(
            f"the executors cannot run duemq: {lines[-1].strip()[:500]} (docs/guides/pipeline.md, On a cluster)"
        ) from error
    return sorted((SparkWorker(**row.asDict()) for row in rows), key=lambda worker: worker.executor)


def versions(spark: SparkSession) -> dict[str, str]:
    """The versions of Spark and Java, the master and the application's id."""
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
    import duemq.client
    import duemq.storage.imports.import_file

    # A worker runs in the folder of its executor, which distinguishes executors on the same host.
    where = f"{platform.node()} {os.path.basename(os.getcwd())}"
    row = [where, platform.python_version(), duemq.__version__, pa.__version__]
    yield pa.RecordBatch.from_arrays([pa.array([text]) for text in row], names=_SCHEMA.names)
