"""Tables that commands are given: files and folders by their format, tables of Spark's catalog, or behind JDBC."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampNTZType

from duemq.pipeline import local_times
from duemq.pipeline.errors import BadInput

FORMATS: Final = ("parquet", "orc", "json", "csv")
_BY_SUFFIX: Final = {
    ".parquet": "parquet", ".orc": "orc", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv",
    ".tsv": "csv",
}  # fmt: skip


def read_table(
    spark: SparkSession, name: str, kind: str | None = None, options: Mapping[str, str] | None = None
) -> DataFrame:
    """A file, a folder or a pattern of files (local, or with a scheme), or a table of the catalog.

    `kind` is one of FORMATS; without it the name says which it is, or those of the files in the folder. CSV has a
    header, and its columns are text: an id such as 0012 is no number. `options` of Spark's reader come last. Times in
    files that do not say their zone are TIMESTAMP_NTZ, or text; a table of the catalog is as it is declared. Raises
    BadInput.
    """
    if kind is None and not _is_path(name):
        return _found(lambda: spark.table(name), name)
    kind = kind or _kind_of(name)
    if kind not in FORMATS:
        raise BadInput(f"{kind} is not a format of files here; known are {', '.join(FORMATS)}")
    of_csv = {"header": "true", "sep": "\t" if name.endswith(".tsv") else ",", "escape": '"'}
    chosen = (of_csv if kind == "csv" else {}) | dict(options or {})
    reader = spark.read.format(kind).options(**chosen)
    return _found(lambda: local_times.load(spark, reader, kind, name, chosen), name)


def jdbc_table(spark: SparkSession, url: str, name: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """A table behind JDBC; its driver is one of Spark's jars. Times without a zone are TIMESTAMP_NTZ, unless `options`
    (of Spark's reader) say otherwise. Raises BadInput."""
    chosen = {"url": url, "dbtable": name, "preferTimestampNTZ": "true"} | dict(options or {})
    reader = spark.read.format("jdbc").options(**chosen)
    frame = _found(reader.load, name)
    if any(isinstance(field.dataType, TimestampNTZType) for field in frame.schema):
        local_times.need_java_in_utc(spark, name)
    return frame


def fingerprint(frame: DataFrame) -> str | None:
    """Differs where a table has other columns or other files, by their names, sizes and times, whatever file system
    they are on; None for a table without files. Raises BadInput where a file is gone."""
    files = [unquote(file) for file in frame.inputFiles()]
    if not files:
        return None
    spark = frame.sparkSession
    # Spark's reader of binary files lists their statuses in parallel, on every file system that Hadoop knows. Their
    # content is not read where its column is not asked for.
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")  # paths make no partition columns
    statuses = _found(lambda: reader.load([_literal(file) for file in files]), f"a file of the table ({files[0]})")
    rows = statuses.select("path", "length", F.unix_micros("modificationTime").alias("at")).collect()
    said = [frame.schema.json(), *sorted(f"{row.path} {row.length} {row.at}" for row in rows)]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()


def _literal(path: str) -> str:
    """As a pattern of Hadoop that means this path only."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def _is_path(name: str) -> bool:
    return "/" in name or Path(name).exists() or Path(name).suffix.lower() in _BY_SUFFIX


def _kind_of(name: str) -> str:
    path = Path(name)
    files = [path] if not path.is_dir() else [one for one in path.rglob("*.*") if one.name[0] not in "._"]
    kinds = {_BY_SUFFIX.get(one.suffix.lower()) for one in files} - {None}
    if len(kinds) != 1:
        raise BadInput(f"what kind of files {name} has cannot be told by their names: say --format")
    return kinds.pop() or ""


def _found(load: Callable[[], DataFrame], name: str) -> DataFrame:
    try:
        return load()
    except AnalysisException as error:
        said = str(error.getMessage())
    except Py4JJavaError as error:  # of a database, or its driver
        said = str(error.java_exception.getMessage())
    raise BadInput(f"{name} cannot be read: {said.splitlines()[0]}")
