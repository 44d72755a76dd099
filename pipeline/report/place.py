"""Writes a page next to the tables, on any file system."""

from __future__ import annotations

import os
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.files.uris import hadoop_path, local_path
from duemq.pipeline.spark.connect import is_remote


def check_page(spark: SparkSession, uri: str, option: str) -> None:
    """Raise BadInput if no page can be written to a folder (`uri_of`): outside this machine, a Connect session can only
    write tables. Call it before the work starts. `option`: the option that names the folder."""
    if is_remote(spark) and local_path(uri) is None:
        raise BadInput(
            f"{option} {uri}: a Spark Connect session can write tables there, but no page: name a folder of this "
            "machine, or run the command with another --master"
        )


def write_page(spark: SparkSession, uri: str, html: str) -> None:
    """Write or replace the page at a URI (`uri_of`). Raises JobFailed."""
    try:
        if (path := local_path(uri)) is not None:
            _replace(path, html)
        else:
            _by_hadoop(spark, uri, html)
    except OSError as error:
        raise JobFailed(f"the tables are written, but {uri} cannot be: {error.strerror or error}") from error
    except Py4JJavaError as error:
        why = error.java_exception.getMessage()
        raise JobFailed(f"the tables are written, but {uri} cannot be: {why}") from error


def _replace(path: Path, html: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    half.write_text(html, "utf-8")
    half.replace(path)


def _by_hadoop(spark: SparkSession, uri: str, html: str) -> None:
    files, path = hadoop_path(spark, uri)
    stream = files.create(path, True)
    try:
        stream.write(bytearray(html.encode()))
    finally:
        stream.close()
