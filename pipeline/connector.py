"""Where Spark has its Kafka connector from: one rule, in this order.

1. the jars of a folder, where `DUEMQ_SPARK_JARS` names one (no network is needed then);
2. what `spark-submit` was told (`--jars`, `--packages`);
3. packages fetched from Maven Central, or from where `spark.jars.ivySettings` says.

Spark 4.3.0 has a connector of its own version that cannot be resolved everywhere: a part of it
(`spark-token-provider-kafka`) was last published with 4.0.0. The four below run on Spark 4.3.0: reading and writing in
batches and streams, headers, read committed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from duemq.pipeline.errors import SparkUnavailable

JARS_VARIABLE: Final = "DUEMQ_SPARK_JARS"
PACKAGES: Final = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
# Spark brings these itself, and others beside them clash.
EXCLUDES: Final = (
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.slf4j:slf4j-api",
    "org.lz4:lz4-java",
    "org.xerial.snappy:snappy-java",
    "org.scala-lang:scala-library",
    "com.google.code.findbugs:jsr305",
    "com.github.luben:zstd-jni",
)
_CONNECTOR = "spark-sql-kafka"


def connector(configured: Mapping[str, str]) -> dict[str, str]:
    """The settings that bring the connector. `configured`: what is set already. Raises SparkUnavailable."""
    if folder := os.environ.get(JARS_VARIABLE):
        return {"spark.jars": ",".join([*_listed(configured.get("spark.jars")), *map(str, _jars(Path(folder)))])}
    if any(_CONNECTOR in configured.get(name, "") for name in ("spark.jars", "spark.jars.packages")):
        return {}
    return {
        "spark.jars.packages": ",".join([*_listed(configured.get("spark.jars.packages")), *PACKAGES]),
        "spark.jars.excludes": ",".join([*_listed(configured.get("spark.jars.excludes")), *EXCLUDES]),
    }


def _jars(folder: Path) -> list[Path]:
    jars = sorted(folder.glob("*.jar"))
    if not any(_CONNECTOR in jar.name for jar in jars):
        wanted = ", ".join(package.split(":")[1] for package in PACKAGES)
        raise SparkUnavailable(f"{folder} ({JARS_VARIABLE}) has no Kafka connector: it needs the jars {wanted}")
    return jars


def _listed(text: str | None) -> list[str]:
    return [part for part in (text or "").split(",") if part]
