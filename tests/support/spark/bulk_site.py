"""A target for tests of bulk schedule: a proxy with three shards in a thread, and a stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duemq.client import Admin
from duemq.model.timing import WINDOW_MS
from duemq.pipeline.logs.server import Server
from duemq.pipeline.spark.progress import Silent
from tests.support.http.proxy_site import proxy_site


@dataclass(frozen=True)
class Site:
    url: str
    stage: Path

    @property
    def server(self) -> Server:
        return Server(self.url)

    def pending(self) -> int:
        with Admin(self.url) as client:
            return sum(shard.pending or 0 for shard in client.cluster().shards)


@contextmanager
def bulk_site(folder: Path) -> Iterator[Site]:
    (folder / "shared").mkdir()
    with proxy_site(folder / "data") as url:
        yield Site(url, folder / "shared")


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """A setting of Spark for a time."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)


def first_window() -> int:
    """The start of a window (ms) that is an hour ahead at least."""
    return (int(time.time() * 1000) // WINDOW_MS + 3) * WINDOW_MS


def rows(spark: SparkSession, count: int, windows: int = 3, prefix: str = "n") -> DataFrame:
    start = first_window()
    return spark.range(0, count, 1, 4).select(
        (F.lit(start) + F.pmod(F.col("id") * 999_983, F.lit(windows * WINDOW_MS))).alias("due"),
        F.concat(F.lit("payload of "), "id").alias("body"),
        F.concat(F.lit("k"), F.col("id") % 5).alias("key"),
        F.concat(F.lit(prefix), "id").alias("name"),
        (-F.col("id")).alias("rank"),
    )


class Sentences(Silent):
    """A Teller that keeps its input."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def says(self, sentence: str) -> None:
        self.said.append(sentence)
