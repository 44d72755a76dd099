"""Writes folders and files as URIs that are the same for the driver and every executor.

Spark resolves a path without a scheme on the cluster's default file system, where users would not look for the output
of `--out reports`. Here such a path is on this machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from duemq.pipeline.errors import BadInput
from duemq.pipeline.files.patterns import exact

SCHEMES: Final = ("file", "hdfs", "viewfs", "s3a", "s3", "abfs", "abfss", "gs", "dbfs")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)")
_NOT_THERE: Final = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")


def uri_of(place: str | Path) -> str:
    """The URI of a folder or file, unquoted, as Hadoop expects it.

    A path without a scheme is on this machine: `reports` becomes `file:///home/me/reports`. Raises BadInput for an
    unknown scheme, a `file:` URI with a host, and an empty text.
    """
    text = str(place)
    if not text:
        raise BadInput("an empty text names no folder or file")
    match = _SCHEME.match(text)
    if match is None:
        return f"file://{os.path.abspath(text)}"
    scheme, rest = match[1].lower(), text[match.end() :]
    if scheme not in SCHEMES:
        raise BadInput(f"{text}: the scheme {match[1]}: is unknown; known are {', '.join(SCHEMES)}")
    if scheme == "file":
        if rest.startswith("//") and not rest.startswith("///"):
            raise BadInput(f"{text}: a file: URI has three slashes and no host, such as file:///data/ids")
    return f"{scheme}:{rest}"


def pattern_of(place: str | Path) -> str:
    """As `uri_of`, for reading: the path may be a pattern, such as `dump/*.csv`. The current folder is escaped."""
    text = str(place)
    if not text or os.path.isabs(text) or _SCHEME.match(text):
        return uri_of(text)
    return f"file://{os.path.normpath(os.path.join(exact(os.getcwd()), text))}"


def scheme_of(uri: str) -> str:
    """The scheme of a URI from `uri_of`."""
    return uri.partition(":")[0]


def local_path(uri: str) -> Path | None:
    """The path of a `file:` URI from `uri_of`; None for another file system."""
    return Path(f"/{uri.removeprefix('file:').lstrip('/')}") if scheme_of(uri) == "file" else None


def below(uri: str, name: str) -> str:
    """The URI of `name` in a folder."""
    return f"{uri.rstrip('/')}/{name}"


def hadoop_path(spark: SparkSession, uri: str) -> tuple[Any, Any]:
    """Hadoop's objects for the file system of a URI and for the path, with Spark's settings and logins. Not available
    in a Connect session. Methods of both raise Py4JJavaError."""
    java: Any = spark._jvm
    path = java.org.apache.hadoop.fs.Path(uri)
    return path.getFileSystem(spark._jsc.hadoopConfiguration()), path


def destination(spark: SparkSession, place: str | Path, option: str, *, new: bool = False) -> str:
    """The URI of a folder for Spark's output. Call it before the work starts.

    `option`: the option that names it, for the sentence. `new`: the folder must not exist. Raises BadInput as `uri_of`,
    and if Spark cannot reach the file system.
    """
    try:
        uri = uri_of(place)
    except BadInput as error:
        raise BadInput(f"{option} {error}") from error
    if _exists(spark, uri, option) and new:
        raise BadInput(f"{option} {uri}: exists already: remove it, or name another folder")
    return uri


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Raise BadInput for Spark's errors about a table or files that cannot be read."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise BadInput(f"{name} cannot be read: {_why(error)}"[:500]) from error


def _exists(spark: SparkSession, uri: str, option: str) -> bool:
    """Whether a folder or file exists."""
    try:
        spark.read.format("binaryFile").load(exact(uri)).schema  # noqa: B018  Connect only checks on request
    except (PySparkException, Py4JJavaError) as error:
        if isinstance(error, PySparkException) and error.getCondition() in _NOT_THERE:
            return False
        raise BadInput(f"{option} {uri}: Spark cannot reach it ({_why(error)})"[:500]) from error
    return True


def _why(error: PySparkException | Py4JJavaError) -> str:
    """The line with the cause; the first line if the error has one of Spark's conditions."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, PySparkException) and error.getCondition() is not None and lines:
        return lines[0].partition(" SQLSTATE:")[0].rstrip(".")
    why = next((line for line in lines if "Exception" in line or "No FileSystem" in line), lines[0] if lines else "")
    return why.rpartition("Exception: ")[2] or why
