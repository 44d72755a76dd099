"""Finds Spark's Kafka connector. The first of these sources that has it is used:

1. the jars in the folder that `DUEMQ_SPARK_JARS` names (needs no network);
2. the jars or packages given to `spark-submit` (`--jars`, `--packages`);
3. four jars from the local Maven repository, from Maven Central, or as configured by `spark.jars.ivySettings`.

The connector published with Spark 4.3.0 cannot be resolved: it needs `spark-token-provider-kafka`, last published with
4.0.0. The four jars below were tested with Spark 4.3.0: batches, streams, headers, read committed. They are fetched one
by one without dependencies: as `spark.jars.packages`, the first would also pull in jars that clash with Spark's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from duemq.pipeline.errors import SparkUnavailable

JARS_VARIABLE: Final = "DUEMQ_SPARK_JARS"
PACKAGES: Final = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
_CONNECTOR = "spark-sql-kafka"


def from_folder(configured: Mapping[str, str]) -> dict[str, str]:
    """The setting that adds the jars in `DUEMQ_SPARK_JARS`; empty if this is not set. Raises SparkUnavailable."""
    folder = os.environ.get(JARS_VARIABLE)
    if not folder:
        return {}
    jars = sorted(Path(folder).glob("*.jar"))
    if not any(_CONNECTOR in jar.name for jar in jars):
        names = ", ".join(package.split(":")[1] for package in PACKAGES)
        raise SparkUnavailable(f"{folder} ({JARS_VARIABLE}) has no Kafka connector: it needs the jars {names}")
    return {"spark.jars": ",".join([*filter(None, [configured.get("spark.jars")]), *map(str, jars)])}


def is_configured(configured: Mapping[str, str]) -> bool:
    return any(_CONNECTOR in configured.get(name, "") for name in ("spark.jars", "spark.jars.packages"))


def fetch(spark: SparkSession) -> None:
    """Add the four jars to a session. Raises SparkUnavailable."""
    with _capture_ivy(spark) as output:
        for package in PACKAGES:
            try:
                spark.sql(f"ADD JAR 'ivy://{package}?transitive=false'")
            except (PySparkException, Py4JError) as error:
                sys.stderr.write(output())
                why = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
                raise SparkUnavailable(
                    f"Spark's Kafka connector cannot be fetched ({package}: {why.splitlines()[0]}). Put its "
                    f"jars into a folder, and name that in {JARS_VARIABLE}: "
                    "docs/guides/pipeline.md, The Kafka connector"
                ) from error


@contextmanager
def _capture_ivy(spark: SparkSession) -> Iterator[Callable[[], str]]:
    """Capture the pages of output that Ivy prints for every jar, fetched or not."""
    java: Any = spark.sparkContext._jvm
    printer = getattr(getattr(java.org.apache.spark.deploy, "SparkSubmit$"), "MODULE$")
    before, pages = printer.printStream(), java.java.io.ByteArrayOutputStream()
    set_stream = getattr(printer, "printStream_$eq")
    set_stream(java.java.io.PrintStream(pages, True))
    try:
        yield pages.toString
    finally:
        set_stream(before)
