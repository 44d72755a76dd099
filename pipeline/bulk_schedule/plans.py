"""Reads from Spark's plan of a frame what identifies the frame, and its size in bytes.

`explain` works in every kind of session. `semanticHash` cannot be used: it includes the identity of a Java object, so
it differs between processes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Final

from pyspark.sql import DataFrame

from duemq.pipeline.spark.session import override

_FIELDS: Final = "spark.sql.debug.maxToStringFields"
_ANALYZED = re.compile(r"== Analyzed Logical Plan ==\n(.*?)\n== Optimized Logical Plan ==", re.DOTALL)
_NUMBERED = re.compile(r"#(\d+)")
_OF_PROCESS = re.compile(r"@[0-9a-f]{4,}|\$\$Lambda[\w$/]*|\[plan_id=\d+\]")
_SIZE = re.compile(r"Statistics\(sizeInBytes=([0-9.E+]+) ([KMGTPE]i)?B")
_UNITS: Final[Mapping[str, int]] = {"": 0, "Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def plan_of(frame: DataFrame) -> str:
    """The analyzed plan, as text that is the same in every session. It contains neither the rows of a local list or RDD
    nor the code of Python functions."""
    with override(frame.sparkSession, {_FIELDS: "1000000"}):  # so that Spark does not truncate the plan
        match = _ANALYZED.search(_explained(frame, "extended"))
    text = _OF_PROCESS.sub("", match[1] if match else "")
    numbers: dict[str, int] = {}  # Spark numbers the columns differently in each plan
    return _NUMBERED.sub(lambda one: f"#{numbers.setdefault(one[1], len(numbers))}", text)


def bytes_of(frame: DataFrame) -> int | None:
    """Spark's estimate of a frame's size in bytes, from file sizes and column types; None without an estimate."""
    match = _SIZE.search(_explained(frame, "cost"))
    if match is None:
        return None
    size = int(float(match[1]) * (1 << _UNITS[match[2] or ""]))
    return size if size < 1 << 60 else None  # larger: Spark's default for a source without statistics


def _explained(frame: DataFrame, mode: str) -> str:
    output = io.StringIO()
    with redirect_stdout(output):
        frame.explain(mode=mode)
    return output.getvalue()
