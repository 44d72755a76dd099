"""Configures the Spark session, for the whole pipeline.

On a laptop, Spark runs as `local[*]`, logs little, and is bound to the loopback address. Settings given to
`spark-submit`, in `spark-defaults.conf` or by the caller always override those here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
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

OLDEST_JAVA = 17  # required by Spark 4
_JAVA_VERSION = re.compile(r'version "(\d+)')
_JAVA_TIMEOUT_S = 30.0
_LOGGING = Path(__file__).with_name("log4j2.properties")

DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.showConsoleProgress": "false",  # `progress.py` shows named steps; the bar garbles other output
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Up to this number of shuffle partitions, Spark knows the size of each partition and not only the mean size: see
    # `bulk_schedule/files.py`.
    "spark.shuffle.minNumPartitionsToHighlyCompress": "20000",
    # -Xss: stopping a busy stream overflows the default stack. UTC: database drivers and ORC read local times through
    # Java's zone, which would shift the times that it skips in spring. Code cache: an audit fills the default cache of
    # a Java that has only the quick compiler. The rest sends Java's own messages to stderr: stdout is for `--json`.
    "spark.driver.extraJavaOptions": f"-Xss16m -Duser.timezone=UTC -Dlog4j2.configurationFile={_LOGGING.as_uri()} "
    "-XX:ReservedCodeCacheSize=240m -XX:+DisplayVMOutputToStderr -Xlog:disable -Xlog:all=warning:stderr",
}
LOCAL: Final[Mapping[str, str]] = {
    "spark.master": "local[*]",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # There is no UI, and the plans and tasks that Spark retains for it by default would fill the driver's memory.
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.shuffle.partitions": "16",  # an initial number: adaptive execution joins small partitions
}


def session(
    name: str, *, kafka: bool = False, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, started if there is none. `kafka`: with the connector. `settings`: Spark's, by name.

    `master` may be a Spark Connect server, `sc://HOST:PORT`, which has its own connector and most settings. A running
    session belongs to the caller and is returned unchanged. Raises SparkUnavailable.
    """
    if (running := SparkSession.getActiveSession()) is not None:
        return running
    if master is not None and master.startswith(connect.SCHEME):
        return connect.remote_session(name, master, dict(settings or {}))
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has started Java and read its settings
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
        # By default workers run the first `python3` on PATH. On a cluster, the settings of spark-submit apply.
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
            "Spark's Java ended during startup; its output is above. Java must include the module "
            "jdk.incubator.vector, which trimmed builds may lack."
        ) from error
    if kafka and not is_configured(chosen) and not has_connector(spark):  # platforms may have it on the class path
        try:
            fetch(spark)
        except BaseException:
            spark.stop()
            raise
    if submitted and "spark.log.level" not in caller_settings:
        spark.sparkContext.setLogLevel("WARN")  # at INFO every task logs a line
    return spark


def check_java() -> Path:
    """The Java that Spark will start: the one in `JAVA_HOME`, or else `java` on PATH. Raises SparkUnavailable."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None:
        raise SparkUnavailable(
            f"Spark needs a Java of version {OLDEST_JAVA} or newer, and there is none on PATH or in JAVA_HOME: "
            "install a JDK"
        )
    if (version := _java_version(program)) < OLDEST_JAVA:
        of = "JAVA_HOME" if home else "PATH"
        what = f"is Java {version}" if version else "does not run"
        raise SparkUnavailable(f"Spark needs Java {OLDEST_JAVA} or newer; {program} (of {of}) {what}")
    return Path(program)


def _java_version(program: str) -> int:
    """The major version of a Java program; 0 if it does not run."""
    try:
        result = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    version = _JAVA_VERSION.search(result.stderr)
    return int(version[1]) if version else 0


def chosen_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The given settings on top of our defaults; some defaults are only for a local master."""
    return dict(DEFAULTS) | (dict(LOCAL) if _is_local(settings) else {}) | dict(settings)


def _is_local(settings: Mapping[str, str]) -> bool:
    return settings.get("spark.master", LOCAL["spark.master"]).startswith("local")


@contextmanager
def running(
    name: str, *, kafka: bool = False, master: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session that ends with the block. Raises SparkUnavailable."""
    spark = session(name, kafka=kafka, master=master, settings=settings)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def override(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change these settings of a session inside the block, and restore them afterwards."""
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
