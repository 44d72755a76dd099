"""A Spark session for the tests of the pipeline: one for all of them, in one process (they are an xdist group)."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duemq.dev.servers.jars import jars
from duemq.pipeline.spark.connector import JARS_VARIABLE
from duemq.pipeline.spark.progress import Silent
from duemq.pipeline.spark.session import running
from tests.support.servers.real_servers import need_servers
from tests.support.spark.java import java_of

JARS = Path(__file__).with_name("spark_jars.txt")
SETTINGS = {"spark.driver.memory": "1536m", "spark.sql.shuffle.partitions": "4", "spark.default.parallelism": "2"}

SESSION_ZONES = ("UTC", "America/New_York", "Asia/Kolkata")

spark_tests = [pytest.mark.xdist_group("spark"), pytest.mark.filterwarnings("ignore::ResourceWarning")]
"""What modules with Spark tests say as their `pytestmark`. Py4J leaves sockets to the garbage collector."""


class RecordingTeller(Silent):
    """Remembers steps and shares."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.shares: list[tuple[int, int]] = []

    def step(self, what: str) -> None:
        self.steps.append(what)

    def share(self, done: int, total: int) -> None:
        self.shares.append((done, total))


def spark_jars() -> Path:
    """A folder with the Kafka connector."""
    return jars(None, JARS)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    need_servers()
    os.environ[JARS_VARIABLE] = str(spark_jars())
    with running("tests", kafka=True, master="local[2]", settings=SETTINGS) as session:
        yield session


@pytest.fixture(scope="module", autouse=True)
def free_broadcasts() -> Iterator[None]:
    """Free what the DataFrames of a module hold in Java, if its heap is half full: Python collects their cycles too
    rarely for it. Each time takes a second or two."""
    yield
    if (session := SparkSession.getActiveSession()) is not None:
        java = java_of(session)
        heap = java.Runtime.getRuntime()
        if heap.totalMemory() - heap.freeMemory() > heap.maxMemory() // 2:
            gc.collect()
            java.System.gc()  # Spark's cleaner frees broadcasts that Java has collected


@pytest.fixture(params=SESSION_ZONES)
def session_zone(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """A session whose zone is another one: a cluster's `spark-defaults.conf` may say any."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    try:
        yield request.param
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
