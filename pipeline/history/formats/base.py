"""The port that each storage format of a history implements."""

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
"""The two kinds of rows; each kind has its own table."""
ORDER: Final = {"deliveries": ("date", "topic", "delivered_ms"), "outcomes": ("date", "outcome", "at_ms")}


class Format(Protocol):
    """Two tables below a folder: `deliveries` and `outcomes`. Only one job at a time adds rows to them.

    `kind` is a key of `SCHEMAS`; `number` is the number of a batch, counted from 0. After a crash, Spark repeats a
    number with the same rows.
    """

    def make(self) -> None:
        """Create the tables unless they exist. Raises BadInput if this storage cannot hold them."""

    def is_empty(self) -> bool:
        """Whether no batch was ever added."""

    def has(self, kind: str, number: int) -> bool:
        """Whether a batch was added."""

    def add(self, kind: str, number: int, rows: DataFrame) -> None:
        """Add the rows of a batch atomically, unless the batch was added before."""

    def read(self, kind: str) -> DataFrame:
        """All rows, each once, even during an `add` or `compact`."""

    def compact(self, kind: str, below_bytes: int) -> tuple[int, int]:
        """Join small files into larger ones of at most `below_bytes`. Returns the number of these files before and
        after.

        A job may add batches at the same time, but only one process may compact.
        """


def columns(kind: str) -> list[str]:
    return [field.split()[0] for field in SCHEMAS[kind].split(", ")]


def arranged(kind: str, rows: DataFrame) -> DataFrame:
    """The rows in the order for writing: grouped by day, and within a file sorted by topic (or outcome) and time.

    With the settings in `writing`, Spark joins small partitions and splits large ones: a day with a few rows gets one
    file, and a topic with most of the rows is written by several tasks.
    """
    date, group, _ = ORDER[kind]
    return rows.select(columns(kind)).hint("rebalance", date, group).sortWithinPartitions(*ORDER[kind])


def check_joined(kind: str, before: DataFrame, after: DataFrame) -> None:
    """Call it before joined files replace their sources. Raises JobFailed if the numbers of rows differ."""
    if (old := before.count()) != (new := after.count()):
        raise JobFailed(f"{kind}: {old:,} rows are {new:,} in the joined files: nothing was replaced")


def neighbours(items: Iterable[T], size: Callable[[T], int], below_bytes: int) -> list[list[T]]:
    """Groups of two or more consecutive items, each of at most `below_bytes`. Other items are left out."""
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
    """The settings for `arranged`. `file_bytes`: the maximum size of a file; None means the session's setting."""
    settings = {
        "spark.sql.adaptive.enabled": "true",  # some streams and clusters turn it off
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",  # few files, not one per core
    }
    if file_bytes is not None:
        # Shuffled rows are less compressed than the rows in a file.
        settings["spark.sql.adaptive.advisoryPartitionSizeInBytes"] = f"{4 * file_bytes}b"
    with override(spark, settings):
        yield
