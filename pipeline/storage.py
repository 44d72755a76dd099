"""How a folder that Spark reads or writes is named: one URI, the same for the driver and every executor.

Spark puts a path without a scheme below the cluster's default file system, where nobody looks for what a command with
`--out reports` wrote. So a path is one of this machine here, and everything else is a URI.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from duemq.pipeline.errors import BadInput

SCHEMES: Final = ("file", "hdfs", "viewfs", "s3a", "s3", "abfs", "abfss", "gs", "dbfs")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)")
_NOT_THERE: Final = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")


def uri_of(place: str | Path) -> str:
    """The URI of a folder or file, as Hadoop reads it: nothing in it is quoted.

    A path without a scheme is one of this machine: `reports` becomes `file:///home/me/reports`. A URI of a known scheme
    passes. Raises BadInput for others, and for a `file:` URI that names a host.
    """
    text = str(place)
    found = _SCHEME.match(text)
    if found is None:
        return f"file://{os.path.abspath(text)}"
    scheme, rest = found[1].lower(), text[found.end() :]
    if scheme not in SCHEMES:
        raise BadInput(f"{text}: nothing here knows the scheme {found[1]}:; known are {', '.join(SCHEMES)}")
    if scheme == "file":
        if rest.startswith("//") and not rest.startswith("///"):
            raise BadInput(f"{text}: a file: URI has three slashes and no host, such as file:///data/ids")
    return f"{scheme}:{rest}"


def scheme_of(uri: str) -> str:
    """Of what `uri_of` gives."""
    return uri.partition(":")[0]


def local_path(uri: str) -> Path | None:
    """The path of a `file:` URI that `uri_of` gave; None for one on another file system."""
    return Path(f"/{uri.removeprefix('file:').lstrip('/')}") if scheme_of(uri) == "file" else None


def below(uri: str, name: str) -> str:
    """The URI of what is called `name` in a folder."""
    return f"{uri.rstrip('/')}/{name}"


def check_reachable(spark: SparkSession, uri: str, option: str) -> None:
    """Raise BadInput in a sentence where Spark cannot work with a URI: its file system is unknown to this Spark, or
    refuses. To be called before work whose outcome goes there. The folder need not exist. `option`: what named it."""
    try:
        spark.read.format("binaryFile").load(uri).schema  # noqa: B018  Connect looks only where it is asked
    except PySparkException as error:
        if error.getCondition() in _NOT_THERE:
            return
        raise _unreachable(uri, option, error) from error
    except Exception as error:  # py4j's, of what Hadoop says
        raise _unreachable(uri, option, error) from error


def _unreachable(uri: str, option: str, error: Exception) -> BadInput:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    why = next((line for line in lines if "Exception" in line or "No FileSystem" in line), lines[0] if lines else "")
    return BadInput(f"{option} {uri}: Spark cannot reach it ({why.rpartition('Exception: ')[2] or why})"[:500])
