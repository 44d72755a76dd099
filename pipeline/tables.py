"""Tables that commands are given: files and folders by their format, and tables of Spark's catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from duemq.pipeline.errors import BadInput

FORMATS: Final = ("parquet", "orc", "json", "csv")
_BY_SUFFIX: Final = {
    ".parquet": "parquet", ".orc": "orc", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv",
    ".tsv": "csv",
}  # fmt: skip


def read_table(spark: SparkSession, table: str, kind: str | None = None) -> DataFrame:
    """A file, a folder or a pattern of files, or a table of the catalog.

    `kind` is one of FORMATS; without it the name says which it is, or that of a file in the folder. CSV has a header,
    and its columns are text: an id such as 0012 is no number. Raises BadInput.
    """
    kind = kind or _kind_of(table)
    try:
        if kind is None:
            return spark.table(table)
        reader = spark.read.format(kind)
        if kind == "csv":
            reader = reader.options(header="true", sep="\t" if table.endswith(".tsv") else ",", escape='"')
        return reader.load(table)
    except AnalysisException as error:
        raise BadInput(f"{table} cannot be read: {str(error.getMessage()).splitlines()[0]}") from error


def _kind_of(table: str) -> str | None:
    path = Path(table)
    if found := _BY_SUFFIX.get(path.suffix.lower()):
        return found
    if path.is_dir():
        files = (file for file in path.rglob("*") if not file.name.startswith(("_", ".")))
        return next((_BY_SUFFIX[file.suffix] for file in files if file.suffix in _BY_SUFFIX), "parquet")
    return "parquet" if "/" in table else None
