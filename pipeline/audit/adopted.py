"""The messages of adopted files: row `i` of a file is the message `due | offset of the command | i`.

The rows are read from the file, where it is still what was adopted. Where it is gone, so many messages are known by
their numbers: they were due in the file's window, and nobody can say more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from duemq.model.ledger import Answer
from duemq.model.timing import WINDOW_MS

_PART = 4 << 20
ROWS = "shard int, offset bigint, row bigint, due bigint, at bigint, topic string, counted boolean"


@dataclass(frozen=True, slots=True)
class AdoptedFile:
    """`offset`: of its command; `at`: when its messages were accepted; `why_not`: why its rows cannot be read."""

    shard: int
    offset: int
    rows: int
    at: int
    path: str
    window: int
    size: int
    sha256: str
    why_not: str = ""


def adopted_files(commands: DataFrame, answers: DataFrame, entries: DataFrame) -> list[AdoptedFile]:
    """The files that were adopted in the range by commands of the range."""
    said = entries.select("shard", F.col("at").alias("taken_at"), F.explode("adopted").alias("one")).where(
        "one.reason = ''"
    )
    taken = said.select("shard", "taken_at", "one.offset", F.col("one.rows").alias("taken"))
    wanted = commands.where("kind = 'adopt'").join(
        answers.where(F.col("answer") == int(Answer.WANTED)), ["shard", "offset"]
    )
    found = wanted.join(taken, ["shard", "offset"]).orderBy("shard", "offset").collect()
    return [
        AdoptedFile(one.shard, one.offset, one.taken, one.taken_at, one.path, one.window, one["size"], one.sha256)
        for one in found
    ]


def why_unreadable(file: AdoptedFile) -> str:
    """Why the rows of a file cannot be taken from where it was, in a few words; empty where they can."""
    path = Path(file.path)
    try:
        if path.stat().st_size != file.size:
            return "it has another size now"
        digest = hashlib.sha256()
        with path.open("rb") as content:
            while part := content.read(_PART):
                digest.update(part)
    except OSError as error:
        return error.strerror or str(error)
    return "" if digest.hexdigest() == file.sha256 else "it has other content now"


def rows_of(spark: SparkSession, files: Iterable[AdoptedFile]) -> DataFrame:
    """One row per message: `shard`, `offset`, `row`, `due`, `at`, `topic`, and `counted` where it is known by its
    number alone: `due` is then the last millisecond of its window."""
    files = list(files)
    whole = [file for file in files if not file.why_not]
    frames = [_counted(spark, file) for file in files if file.why_not]
    if whole:
        frames.append(_read(spark, whole))
    if not frames:
        return spark.createDataFrame([], ROWS)
    return reduce(DataFrame.unionByName, frames)


def _read(spark: SparkSession, files: list[AdoptedFile]) -> DataFrame:
    # The same content may be handed over from several places, but is adopted once: a path is one command.
    by_path = [(Path(file.path).as_uri().removeprefix("file://"), file.shard, file.offset, file.at) for file in files]
    about = spark.createDataFrame(by_path, "path string, shard int, offset bigint, at bigint")
    read = spark.read.schema("due_ms bigint, topic string").parquet(*(Path(file.path).as_uri() for file in files))
    rows = read.select(
        F.regexp_replace("_metadata.file_path", "^file:/*", "/").alias("path"),
        F.col("_metadata.row_index").alias("row"), F.col("due_ms").alias("due"), "topic",
    )  # fmt: skip
    return rows.join(F.broadcast(about), "path").select(*_ordered(F.lit(False)))


def _counted(spark: SparkSession, file: AdoptedFile) -> DataFrame:
    rows = spark.range(file.rows).select(F.col("id").alias("row"))
    return rows.select(
        "row", F.lit(file.shard).alias("shard"), F.lit(file.offset).cast("bigint").alias("offset"),
        F.lit(file.window + WINDOW_MS - 1).cast("bigint").alias("due"), F.lit(file.at).cast("bigint").alias("at"),
        F.lit(None).cast("string").alias("topic"),
    ).select(*_ordered(F.lit(True)))  # fmt: skip


def _ordered(counted: Column) -> list[Column | str]:
    return ["shard", "offset", "row", "due", "at", "topic", counted.alias("counted")]
