"""The port: what a format of tables promises to the job that fills a history, and to who reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

from pyspark.sql import DataFrame, SparkSession

from duemq.pipeline.errors import JobFailed
from duemq.pipeline.history.rows import DELIVERIES, OUTCOMES
from duemq.pipeline.spark.session import override

T = TypeVar("T")
SCHEMAS: Final = {"deliveries": DELIVERIES, "outcomes": OUTCOMES}
"""The two kinds of rows, each a table of its own."""
ORDER: Final = {"deliveries": ("date", "topic", "delivered_ms"), "outcomes": ("date", "outcome", "at_ms")}


class Format(Protocol):
    """Two tables below a folder, `deliveries` and `outcomes`. One job at a time adds to them.

    `kind` is one of `SCHEMAS`, `number` the number of a batch, from 0 on. Spark gives the same rows for a number again
    after a crash.
    """

    def make(self) -> None:
        """Make what is missing of the tables. Raises BadInput where they cannot be on this storage."""

    def is_empty(self) -> bool:
        """Whether no batch was ever added."""

    def has(self, kind: str, number: int) -> bool:
        """Whether a batch is there."""

    def add(self, kind: str, number: int, rows: DataFrame) -> None:
        """Add the rows of a batch: all of them or none, and none where the batch is there."""

    def read(self, kind: str) -> DataFrame:
        """All rows, each once, whatever else is under way."""

    def compact(self, kind: str, below_bytes: int) -> tuple[int, int]:
        """Join small files to larger ones of so many bytes at most; how many became how many.

        A job may add batches meanwhile, but nobody else may be compacting.
        """


def columns(kind: str) -> list[str]:
    return [field.split()[0] for field in SCHEMAS[kind].split(", ")]


def arranged(kind: str, rows: DataFrame) -> DataFrame:
    """The rows as they are written: those of a day together, and in its files by topic (or outcome) and time.

    Under the settings of `writing`, Spark joins what is small and cuts what is large, whatever it belongs to: a day of
    a few rows has one file, and one topic that has most of the rows is written by several tasks.
    """
    date, group, _ = ORDER[kind]
    return rows.select(columns(kind)).hint("rebalance", date, group).sortWithinPartitions(*ORDER[kind])


def check_joined(kind: str, before: DataFrame, after: DataFrame) -> None:
    """Called before joined files replace others. Raises JobFailed if they have another number of rows."""
    if (old := before.count()) != (new := after.count()):
        raise JobFailed(f"{kind}: {old:,} rows are {new:,} in the joined files: nothing was replaced")


def neighbours(items: Iterable[T], size: Callable[[T], int], below_bytes: int) -> list[list[T]]:
    """Consecutive items in groups of two or more, at most `below_bytes` together. Other items are left out."""
    groups: list[list[T]] = [[]]
    total = 0
    for item in items:
        more = size(item)
        if groups[-1] and total + more > below_bytes:
            groups.append([])
            total = 0
        groups[-1].append(item)
        total += more
    return [group for group in groups if len(group) > 1]


@contextmanager
def writing(spark: SparkSession, file_bytes: int | None = None) -> Iterator[None]:
    """The settings for `arranged`. `file_bytes`: how large a file may become; None for what the session says."""
    settings = {
        "spark.sql.adaptive.enabled": "true",  # streams turn it off at times, and some clusters do
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",  # few files, not one per core
    }
    if file_bytes is not None:
        # What is shuffled is less compressed than a file.
        settings["spark.sql.adaptive.advisoryPartitionSizeInBytes"] = f"{4 * file_bytes}b"
    with override(spark, settings):
        yield
