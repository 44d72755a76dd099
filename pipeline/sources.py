"""Tables that the commands read: a path, a name in the catalog, or a table behind JDBC."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlparse

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from duemq.pipeline.errors import BadInput

FORMATS: Final = ("parquet", "csv", "json", "orc")


def table(
    spark: SparkSession, name: str, *, kind: str | None = None, options: Mapping[str, str] | None = None
) -> DataFrame:
    """A table by its path (local, or with a scheme) or by its name in the catalog. `kind`: one of FORMATS; None: what
    its files are called. CSV has a header line and columns of strings. Raises BadInput."""
    if kind is None and not _is_path(name):
        return _found(lambda: spark.table(name), name)
    kind = kind or _kind_of(name)
    if kind not in FORMATS:
        raise BadInput(f"{kind} is not a format of files here; known are {', '.join(FORMATS)}")
    reader = spark.read.format(kind).options(**({"header": "true"} if kind == "csv" else {}), **(options or {}))
    return _found(lambda: reader.load(name if "://" in name else f"file://{Path(name).absolute()}"), name)


def jdbc_table(spark: SparkSession, url: str, name: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """A table behind JDBC; its driver is one of Spark's jars. Raises BadInput."""
    reader = spark.read.format("jdbc").options(**({"url": url, "dbtable": name} | dict(options or {})))
    return _found(reader.load, name)


def fingerprint(frame: DataFrame) -> str | None:
    """Differs where the files of a table, or its columns, are others; None where that cannot be told."""
    files = sorted(frame.inputFiles())
    if not files:
        return None
    said = [frame.schema.json()]
    for file in files:
        parsed = urlparse(file)
        if parsed.scheme != "file":
            said.append(file)
            continue
        status = os.stat(unquote(parsed.path))
        said.append(f"{file} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(said).encode()).hexdigest()


def _is_path(name: str) -> bool:
    return "/" in name or Path(name).exists() or name.endswith(tuple(f".{kind}" for kind in FORMATS))


def _kind_of(name: str) -> str:
    path = Path(name)
    files = [path] if not path.is_dir() else sorted(one for one in path.rglob("*.*") if one.name[0] not in "._")
    suffixes = {one.suffix.removeprefix(".") for one in files[:100]} & set(FORMATS)
    if len(suffixes) != 1:
        raise BadInput(f"what kind of files {name} has cannot be told by their names: say --format")
    return suffixes.pop()


def _found(load: Callable[[], DataFrame], name: str) -> DataFrame:
    try:
        return load()
    except AnalysisException as error:
        raise BadInput(f"{name} cannot be read: {str(error).splitlines()[0]}") from error
