"""What Spark's plan of a frame says of its rows: which they are, and how many bytes they may have.

Plans are read from `explain`, which every kind of session has. `semanticHash` says less: it is another number in each
Java process, for it has the identity of the class that reads the files in it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

_FIELDS: Final = "spark.sql.debug.maxToStringFields"
_ANALYZED = re.compile(r"== Analyzed Logical Plan ==\n(.*?)\n== Optimized Logical Plan ==", re.DOTALL)
_NUMBERED = re.compile(r"#(\d+)")
_OF_PROCESS = re.compile(r"@[0-9a-f]{4,}|\$\$Lambda[\w$/]*|\[plan_id=\d+\]")
_SIZE = re.compile(r"Statistics\(sizeInBytes=([0-9.E+]+) ([KMGTPE]i)?B")
_UNITS: Final[Mapping[str, int]] = {"": 0, "Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def plan_of(frame: DataFrame) -> str:
    """What is done to which tables, as a text that is the same in every session. Rows of this process's own (a list, an
    RDD) and what a Python function does are not in it."""
    with _whole(frame.sparkSession):
        match = _ANALYZED.search(_explained(frame, "extended"))
    text = _OF_PROCESS.sub("", match[1] if match else "")
    numbers: dict[str, int] = {}  # each column is numbered anew whenever it is made
    return _NUMBERED.sub(lambda one: f"#{numbers.setdefault(one[1], len(numbers))}", text)


def bytes_of(frame: DataFrame) -> int | None:
    """How many bytes Spark expects of it, by the sizes of its files and the types of its columns; None where it cannot
    tell."""
    match = _SIZE.search(_explained(frame, "cost"))
    if match is None:
        return None
    size = int(float(match[1]) * (1 << _UNITS[match[2] or ""]))
    return size if size < 1 << 60 else None  # what it says of a source that says nothing


def _explained(frame: DataFrame, mode: str) -> str:
    output = io.StringIO()
    with redirect_stdout(output):
        frame.explain(mode=mode)
    return output.getvalue()


@contextmanager
def _whole(spark: SparkSession) -> Iterator[None]:
    """Plans are told with all of their fields."""
    try:
        before = spark.conf.get(_FIELDS)
    except PySparkException:
        before = None
    spark.conf.set(_FIELDS, "1000000")
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_FIELDS)
        else:
            spark.conf.set(_FIELDS, before)
