"""Files of an import: documents, by line or whole, and CSV with the lines that are none."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from duemq.pipeline.columns import HIDDEN
from duemq.pipeline.files.uris import pattern_of, readable
from duemq.pipeline.logs.tables import csv_table
from duemq.pipeline.migrate.csv import SOURCE


def read_documents(spark: SparkSession, paths: Sequence[str], *, by_line: bool | None = None) -> DataFrame:
    """`source` and `value` of JSON documents. `paths`: of this machine, or URIs; they may be patterns.

    `by_line`: one on each line; by default where files end in .jsonl or .ndjson, else each file is read as a whole.
    `source` is the file, by line also the number of the line. Raises BadInput.
    """
    if by_line is None:
        by_line = all(path.endswith((".jsonl", ".ndjson")) for path in paths)
    files = [pattern_of(path) for path in paths]
    with readable(", ".join(paths)):
        rows = spark.read.option("recursiveFileLookup", "true").text(files, wholetext=not by_line)
        rows.schema  # noqa: B018  Connect looks only where it is asked
    if by_line:
        return _numbered(rows).where(F.trim("value") != "")
    return rows.where(F.trim("value") != "").select(_file("_metadata.file_path").alias("source"), "value")


def read_csv(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    separator: str = ",",
    quote: str = '"',
    escape: str = '"',
    encoding: str | None = None,
    multiline: bool = True,
) -> DataFrame:
    """As `csv_table`, and in `SOURCE` the file of each row."""
    options = {
        "sep": separator, "quote": quote, "escape": escape, "multiLine": str(multiline).lower(),
    } | ({} if encoding is None else {"encoding": encoding})  # fmt: skip
    rows = csv_table(spark, paths, options)
    return rows.select("*", _file("_metadata.file_path").alias(SOURCE))


def _numbered(lines: DataFrame) -> DataFrame:
    """`source` (file and number of the line) and `value` of lines as Spark's text reader gives them.

    Spark reads a file in blocks, and knows which row of its task a line is. So the lines of the blocks before are
    counted, which reads the files once more, without a look at what is in them.
    """
    file, block, row = HIDDEN + "file", HIDDEN + "block", HIDDEN + "row"
    rows = lines.select(
        F.col("_metadata.file_path").alias(file), F.col("_metadata.file_block_start").alias(block),
        F.monotonically_increasing_id().alias(row), "value",
    )  # fmt: skip
    before = Window.partitionBy(file).orderBy(block).rowsBetween(Window.unboundedPreceding, -1)
    blocks = (
        rows.groupBy(file, block)
        .agg(F.min(row).alias("first"), F.count("*").alias("lines"))
        .select(file, block, "first", F.coalesce(F.sum("lines").over(before), F.lit(0)).alias("before"))
    )
    number = F.col(row) - F.col("first") + F.col("before") + 1
    return rows.join(F.broadcast(blocks), [file, block]).select(
        F.concat(_file(file), F.lit(":"), number).alias("source"), "value"
    )


def _file(path: str) -> Column:
    """A file as its owner calls it: Spark gives it as a URI, with letters encoded."""
    local = F.regexp_replace(F.replace(F.col(path), F.lit("+"), F.lit("%2B")), "^file:/+", "/")
    return F.coalesce(F.try_url_decode(local), F.col(path))
