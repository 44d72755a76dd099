"""The one place where a Spark session is configured.

On a laptop it is `local[*]`, quiet, and bound to the loopback. Under `spark-submit` it is what that was told: nothing
here overrides a setting that is given there, in `spark-defaults.conf`, or by the caller.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from duemq.pipeline.errors import SparkUnavailable
from duemq.pipeline.spark import connect
from duemq.pipeline.spark.check import has_connector
from duemq.pipeline.spark.connector import fetch, from_folder, is_configured
from duemq.pipeline.spark.java import check_java

_LOGGING = Path(__file__).with_name("log4j2.properties")

DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.showConsoleProgress": "false",  # ours are in words (progress.py), and it tramples other output
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Up to so many shuffle partitions Spark knows the size of each, and not only their mean: bulk/files.py.
    "spark.shuffle.minNumPartitionsToHighlyCompress": "20000",
    # -Xss: stopping a stream while it works overflows the stack otherwise. UTC: database drivers and ORC make times of
    # Java out of local ones, and what Java's zone leaves out in spring would be shifted. Code cache: an audit compiles
    # more than the small one of a Java with the quick compiler alone holds. The rest: what Java itself has to say goes
    # to stderr, for stdout is what `--json` prints.
    "spark.driver.extraJavaOptions": f"-Xss16m -Duser.timezone=UTC -Dlog4j2.configurationFile={_LOGGING.as_uri()} "
    "-XX:ReservedCodeCacheSize=240m -XX:+DisplayVMOutputToStderr -Xlog:disable -Xlog:all=warning:stderr",
}
LOCAL: Final[Mapping[str, str]] = {
    "spark.master": "local[*]",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # No UI shows them, and what Spark remembers of its work by default fills the driver: plans of an audit, and tasks.
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.shuffle.partitions": "16",  # what it begins with: adaptive execution joins small ones
}


def session(
    name: str, *, kafka: bool = False, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, started if there is none. `kafka`: with the connector. `settings`: more, by name.

    `master` may be a Spark Connect server, `sc://HOST:PORT`, which has a connector and most settings of its own. A
    session that runs already is given as it is: it is the caller's. Raises SparkUnavailable.
    """
    if (running := SparkSession.getActiveSession()) is not None:
        return running
    if master is not None and master.startswith(connect.SCHEME):
        return connect.remote_session(name, master, dict(settings or {}))
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit, which has started Java and read its settings
    caller_settings = dict(settings or {}) | ({"spark.master": master} if master else {})
    if submitted:
        SparkContext._ensure_initialized()
        caller_settings = dict(SparkConf().getAll()) | caller_settings
    else:
        check_java()
    local = _is_local(caller_settings)
    chosen = chosen_settings(caller_settings)
    if kafka:
        chosen |= from_folder(chosen)
    if local:
        # Workers run the first `python3` of PATH otherwise. On a cluster that is for spark-submit to say.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except PySparkException as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise SparkUnavailable(
            "Spark's Java ended while it started. Above is what it said. "
            "A trimmed Java without the module jdk.incubator.vector does not do either."
        ) from error
    if kafka and not is_configured(chosen) and not has_connector(spark):  # platforms have theirs on the class path
        try:
            fetch(spark)
        except BaseException:
            spark.stop()
            raise
    if submitted and "spark.log.level" not in caller_settings:
        spark.sparkContext.setLogLevel("WARN")  # or each task is a line between those of the command
    return spark


def chosen_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The given settings, and what they leave to us: some of that is for one machine only."""
    return dict(DEFAULTS) | (dict(LOCAL) if _is_local(settings) else {}) | dict(settings)


def _is_local(settings: Mapping[str, str]) -> bool:
    return settings.get("spark.master", LOCAL["spark.master"]).startswith("local")


@contextmanager
def running(
    name: str, *, kafka: bool = False, master: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session for the time of one command. Raises SparkUnavailable."""
    spark = session(name, kafka=kafka, master=master, settings=settings)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def override(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session for the time of a block."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
