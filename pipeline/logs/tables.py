"""Reads users' tables: files and folders by format, tables of Spark's catalog, and tables behind JDBC."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, StringType, StructType, TimestampNTZType

from duemq.pipeline.columns import CORRUPT, HIDDEN, column, local_times
from duemq.pipeline.columns.mapping import NOT_UTF8
from duemq.pipeline.errors import BadInput
from duemq.pipeline.files.patterns import exact
from duemq.pipeline.files.uris import local_path, pattern_of, readable, uri_of

_NAMES_OF_DATABASES: Final = ("database", "databasename", "instancename", "servicename", "currentschema", "db")
FORMATS: Final = ("parquet", "orc", "json", "csv")
_SLASHES: Final = re.compile(":/+")
_BY_SUFFIX: Final = {
    ".parquet": "parquet", ".orc": "orc", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv",
    ".tsv": "csv",
}  # fmt: skip


def read_table(
    spark: SparkSession,
    name: str,
    kind: str | None = None,
    options: Mapping[str, str] | None = None,
    *,
    corrupt: bool = False,
) -> DataFrame:
    """A file, a folder or a pattern of files, or a table in the catalog.

    A name is a path on this machine, or a URI (`uri_of`), if it has a slash or a suffix of FORMATS, if a file with this
    name exists, or if `kind` is given. Other names are in the catalog.

    `kind` is one of FORMATS; None means the suffix of the name or of the files in the folder. CSV must have a header;
    its columns are text, because an id such as 0012 is not a number; see `csv_table` for `corrupt`. Columns of CSV and
    JSON from folder names are text, too. `options` for Spark's reader override all this. Times without a zone in files
    are TIMESTAMP_NTZ, or text. Raises BadInput.
    """
    if kind is None and not is_path(name):
        with readable(name):
            table = spark.table(name)
            table.schema  # noqa: B018  Connect only checks on request
        return table
    if kind is not None and kind not in FORMATS:
        raise BadInput(f"{kind} is not a format of files here; known are {', '.join(FORMATS)}")
    uri = pattern_of(name)
    kind = kind or _kind_of(spark, name, uri)
    if kind == "csv":
        frame = csv_table(spark, [name], {"sep": "\t" if name.endswith(".tsv") else ","} | dict(options or {}))
        return frame if corrupt else frame.drop(CORRUPT)
    chosen = dict(options or {})
    reader = spark.read.format(kind).options(**chosen)
    with readable(name):
        frame = local_times.load(spark, reader, kind, uri, chosen)
        _check_folders(frame)
    return frame


def csv_table(spark: SparkSession, names: Sequence[str], options: Mapping[str, str]) -> DataFrame:
    """CSV files and patterns with a header, and `CORRUPT`: the text of a line with more or fewer columns, or (unless
    `options` name an encoding) with bytes that are not UTF-8. All files have the same columns in the same order.

    Quoted values may have line breaks, so Spark reads each file in one task (`multiLine`). Raises BadInput.
    """
    chosen = {"header": "true", "escape": '"', "multiLine": "true", "enforceSchema": "false"} | dict(options)
    reader = spark.read.format("csv").options(**chosen)
    files = [pattern_of(name) for name in names]
    with readable(", ".join(names)):
        try:
            schema = local_times.text_schema(spark, reader, files, chosen)
        except (PySparkException, Py4JJavaError) as error:
            if "matches 0 files" not in str(error):  # Spark treats the names of the files that it found as patterns
                raise
            schema = local_times.text_schema(spark, reader.option("multiLine", "false"), files, chosen)
            reader = reader.option("multiLine", chosen["multiLine"])
        if clash := next((name for name in schema.names if name.startswith(HIDDEN)), None):
            raise BadInput(f"column {clash}: names that begin with {HIDDEN} are used here, rename it in the file")
        marked = StructType(list(schema)).add(CORRUPT, StringType())
        rows = reader.schema(marked).option("columnNameOfCorruptRecord", CORRUPT).load(files)
    if {"encoding", "charset"} & {option.lower() for option in options}:
        return rows
    texts = (column(field.name) for field in schema if isinstance(field.dataType, StringType))
    line = F.concat_ws(chosen.get("sep", ","), *texts)
    return rows.withColumn(CORRUPT, F.coalesce(CORRUPT, F.when(line.contains(NOT_UTF8), line)))


def jdbc_table(spark: SparkSession, url: str, name: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """A table behind JDBC. Its driver must be one of Spark's jars. Times without a zone are TIMESTAMP_NTZ, unless
    `options` for Spark's reader change that. Raises BadInput."""
    chosen = {"url": url, "dbtable": name, "preferTimestampNTZ": "true"} | dict(options or {})
    reader = spark.read.format("jdbc").options(**chosen)
    with readable(name):
        frame = reader.load()
        fields = frame.schema.fields
    if any(isinstance(field.dataType, TimestampNTZType) for field in fields):
        local_times.need_java_in_utc(spark, name)
    return frame


def jdbc_print(url: str, name: str) -> str:
    """A checksum of a database and its table. Passwords and driver options do not change it."""
    base = url.rpartition("@")[2] if url.startswith("jdbc:oracle:") else re.split("[?;]", url)[0]
    host = re.sub("//[^/]*@", "//", base)
    pairs = (pair.partition("=") for pair in re.split("[?&;]", url)[1:])
    named = sorted(f"{key.lower()}={value}" for key, _, value in pairs if key.lower() in _NAMES_OF_DATABASES)
    return hashlib.sha256("\n".join((host, *named, name)).encode()).hexdigest()


def snapshot_of(spark: SparkSession, name: str) -> str:
    """The current snapshot of an Iceberg or Delta table in the catalog; empty for a table of another kind."""
    for query, field in ((f"SELECT * FROM {name}.refs WHERE name = 'main'", "snapshot_id"),
                         (f"DESCRIBE HISTORY {name} LIMIT 1", "version")):  # fmt: skip
        try:
            row = spark.sql(query).first()
        except (PySparkException, Py4JJavaError):
            continue
        return "" if row is None else f"{field} {row[field]}"
    return ""


def fingerprint(frame: DataFrame) -> str | None:
    """A checksum of a table's columns and of the names, sizes and times of its files, on any file system; None for a
    table without files. Raises BadInput if a file is gone."""
    files = [unquote(file) for file in frame.inputFiles()]
    if not files:
        return None
    spark = frame.sparkSession
    # Spark's reader of binary files lists files in parallel, on every file system that Hadoop supports. It reads the
    # content only if that column is selected. Listing folders is many times faster than listing single files.
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")  # no columns from folder names
    folders = {file.rpartition("/")[0] for file in files}
    places = folders if len(folders) < len(files) else files
    with readable(f"a file of the table ({files[0]})"):
        statuses = reader.load([exact(place) for place in places])
        rows = statuses.select("path", "length", F.unix_micros("modificationTime").alias("at")).collect()
    by_path = {_SLASHES.sub(":/", row.path, 1): f"{row.path} {row.length} {row.at}" for row in rows}
    paths = {_SLASHES.sub(":/", file, 1) for file in files}
    if gone := next((path for path in paths if path not in by_path), None):
        raise BadInput(f"a file of the table ({gone}) cannot be read: it is gone")
    parts = [schema_of(frame), *sorted(by_path[path] for path in paths)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def schema_of(frame: DataFrame) -> str:
    """The columns of a table with their types, without the columns that our readers add: part of a job's identity."""
    return StructType([field for field in frame.schema if not field.name.startswith(HIDDEN)]).json()


def _check_folders(frame: DataFrame) -> None:
    """Raise BadInput if the folder name of a numeric partition has a sign or leading zeros, which Spark drops."""
    numbers = [re.escape(field.name) for field in frame.schema if isinstance(field.dataType, IntegralType)]
    changed = re.compile(rf"/(?:{'|'.join(numbers)})=(?:[+-]|0\d)")
    if numbers and (file := next((file for file in frame.inputFiles() if changed.search(unquote(file))), None)):
        raise BadInput(
            f"{unquote(file)}: Spark reads a number from the name of its folder: for the text, set --conf "
            f"{local_times.PARTITION_TYPES}=false"
        )


def is_path(name: str) -> bool:
    return "/" in name or Path(name).exists() or Path(name).suffix.lower() in _BY_SUFFIX


def _kind_of(spark: SparkSession, name: str, uri: str) -> str:
    folder = local_path(uri_of(name))
    if folder is not None and folder.is_dir():
        suffixes = {one.suffix for one in folder.rglob("*.*") if one.name[0] not in "._"}
    elif not (suffixes := {PurePosixPath(name).suffix.lower()} & _BY_SUFFIX.keys()):
        suffixes = _suffixes(spark, name, uri)
    kinds = {_BY_SUFFIX.get(suffix.lower()) for suffix in suffixes} - {None}
    if len(kinds) != 1:
        raise BadInput(f"what kind of files {name} has cannot be told by their names: say --format")
    return kinds.pop() or ""


def _suffixes(spark: SparkSession, name: str, uri: str) -> set[str]:
    """The suffixes of all files in Spark's listing, which works on any file system."""
    with readable(name):
        files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(uri)
        suffixes = files.select(F.regexp_extract("path", r"\.\w+$", 0).alias("suffix")).distinct()
        return {row.suffix for row in suffixes.collect()}
