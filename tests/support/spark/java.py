"""The Java side of Spark Classic, which PySpark keeps in private attributes."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession


def java_of(spark: SparkSession) -> Any:
    """The packages of the JVM."""
    return spark._jvm


def hadoop_settings_of(spark: SparkSession) -> Any:
    return spark._jsc.hadoopConfiguration()


def query_of(frame: DataFrame) -> Any:
    """How Spark executes it."""
    return frame._jdf.queryExecution()
