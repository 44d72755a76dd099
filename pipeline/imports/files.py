"""Files of an import: documents, by line or whole, and CSV with the lines that are none."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from duemq.pipeline.errors import BadInput
from duemq.pipeline.imports.csv import CORRUPT


def read_documents(spark: SparkSession, paths: Sequence[str], *, by_line: bool | None = None) -> DataFrame:
    """`source` and `value` of JSON documents. `by_line`: one on each line; by default where files end in .jsonl or
    .ndjson, else each file is read as a whole. Raises BadInput."""
    if by_line is None:
        by_line = all(path.endswith((".jsonl", ".ndjson")) for path in paths)
    try:
        rows = spark.read.option("recursiveFileLookup", "true").text(list(paths), wholetext=not by_line)
    except AnalysisException as error:
        raise BadInput(f"{', '.join(paths)} cannot be read: {error.getMessage()}") from error
    return rows.where(F.trim("value") != "").select(_source(), "value")


def read_csv(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    separator: str = ",",
    quote: str = '"',
    escape: str = '"',
    encoding: str = "UTF-8",
    multiline: bool = True,
) -> DataFrame:
    """All columns as text, by the header; `source`, and in `CORRUPT` lines that do not have as many columns.

    `multiline`: quoted values may hold line breaks, which keeps Spark from reading one file in several tasks. Raises
    BadInput.
    """
    reader = spark.read.options(
        header="true", sep=separator, quote=quote, escape=escape, encoding=encoding, multiLine=str(multiline).lower(),
        enforceSchema="false",
    )  # fmt: skip
    try:
        columns = reader.csv(list(paths)).columns
        if repeated := next((name for name in columns if name in (CORRUPT, "source")), None):
            raise BadInput(f"column {repeated}: that name is taken here, rename it in the file")
        schema = StructType()
        for name in (*columns, CORRUPT):
            schema = schema.add(name, StringType())
        rows = reader.schema(schema).option("columnNameOfCorruptRecord", CORRUPT).csv(list(paths))
    except AnalysisException as error:
        raise BadInput(f"{', '.join(paths)} cannot be read: {error.getMessage()}") from error
    return rows.select("*", _source())


def _source() -> Column:
    return F.element_at(F.split("_metadata.file_path", "/"), -1).alias("source")
