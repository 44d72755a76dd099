"""How a folder or file that Spark reads or writes is named: one URI, the same for the driver and every executor.

Spark puts a path without a scheme below the cluster's default file system, where nobody looks for what a command with
`--out reports` wrote. So a path is one of this machine here, and everything else is a URI.
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
    """The URI of a folder or file, as Hadoop reads it: nothing in it is quoted.

    A path without a scheme is one of this machine: `reports` becomes `file:///home/me/reports`. A URI of a known scheme
    passes. Raises BadInput for others, for a `file:` URI that names a host, and for an empty text.
    """
    text = str(place)
    if not text:
        raise BadInput("an empty text names no folder or file")
    match = _SCHEME.match(text)
    if match is None:
        return f"file://{os.path.abspath(text)}"
    scheme, rest = match[1].lower(), text[match.end() :]
    if scheme not in SCHEMES:
        raise BadInput(f"{text}: nothing here knows the scheme {match[1]}:; known are {', '.join(SCHEMES)}")
    if scheme == "file":
        if rest.startswith("//") and not rest.startswith("///"):
            raise BadInput(f"{text}: a file: URI has three slashes and no host, such as file:///data/ids")
    return f"{scheme}:{rest}"


def pattern_of(place: str | Path) -> str:
    """As `uri_of`, of what is read: that may be a pattern, such as `dump/*.csv`. The folder of this process is none,
    whatever characters its name has."""
    text = str(place)
    if not text or os.path.isabs(text) or _SCHEME.match(text):
        return uri_of(text)
    return f"file://{os.path.normpath(os.path.join(exact(os.getcwd()), text))}"


def scheme_of(uri: str) -> str:
    """Of what `uri_of` gives."""
    return uri.partition(":")[0]


def local_path(uri: str) -> Path | None:
    """The path of a `file:` URI that `uri_of` gave; None for one on another file system."""
    return Path(f"/{uri.removeprefix('file:').lstrip('/')}") if scheme_of(uri) == "file" else None


def below(uri: str, name: str) -> str:
    """The URI of what is called `name` in a folder."""
    return f"{uri.rstrip('/')}/{name}"


def hadoop_path(spark: SparkSession, uri: str) -> tuple[Any, Any]:
    """The file system of a URI and the path there, as objects of Hadoop, with the settings and logins that Spark has.
    Not in a Connect session, which has no Java. Methods of both raise Py4JJavaError."""
    java: Any = spark._jvm
    path = java.org.apache.hadoop.fs.Path(uri)
    return path.getFileSystem(spark._jsc.hadoopConfiguration()), path


def destination(spark: SparkSession, place: str | Path, option: str, *, new: bool = False) -> str:
    """The URI of a folder that Spark is to write to. To be called before the work whose outcome goes there.

    `option`: what named it, for the sentence. `new`: nothing may be there; else the folder need not exist. Raises
    BadInput as `uri_of`, and where Spark does not know the file system, or that refuses.
    """
    try:
        uri = uri_of(place)
    except BadInput as error:
        raise BadInput(f"{option} {error}") from error
    if _exists(spark, uri, option) and new:
        raise BadInput(f"{option} {uri}: there is something already: remove it, or name another folder")
    return uri


@contextmanager
def readable(name: str) -> Iterator[None]:
    """What Spark says of a table or files that cannot be read, as BadInput in a sentence."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise BadInput(f"{name} cannot be read: {_why(error)}"[:500]) from error


def _exists(spark: SparkSession, uri: str, option: str) -> bool:
    """Whether there is a folder or file, however it is called."""
    try:
        spark.read.format("binaryFile").load(exact(uri)).schema  # noqa: B018  Connect looks only where it is asked
    except (PySparkException, Py4JJavaError) as error:
        if isinstance(error, PySparkException) and error.getCondition() in _NOT_THERE:
            return False
        raise BadInput(f"{option} {uri}: Spark cannot reach it ({_why(error)})"[:500]) from error
    return True


def _why(error: PySparkException | Py4JJavaError) -> str:
    """The line that says what it was; of an error of Spark itself that is the first one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, PySparkException) and error.getCondition() is not None and lines:
        return lines[0].partition(" SQLSTATE:")[0].rstrip(".")
    why = next((line for line in lines if "Exception" in line or "No FileSystem" in line), lines[0] if lines else "")
    return why.rpartition("Exception: ")[2] or why
