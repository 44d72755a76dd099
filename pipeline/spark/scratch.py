"""Frames that a job computes once and reads many times, kept as Parquet files until the job ends.

A persisted frame keeps its plan, and Spark analyses the whole plan again with every step on top of it; reading a file
is a plan of one line. Files take no executor memory and outlive the executor that wrote them. A Connect client can only
send short plans: protobuf limits nesting to 100 levels, which a few joins over nested expressions exceed.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Final, Self

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from duemq.pipeline.files.patterns import exact
from duemq.pipeline.files.uris import below, hadoop_path, local_path
from duemq.pipeline.spark.connect import is_remote
from duemq.pipeline.spark.session import override

NAME: Final = "_scratch"
# Spark assumes that files are as small in memory as on disk, and would broadcast millions of these rows.
_COMPRESSED: Final = {"spark.sql.sources.fileCompressionFactor": "10.0"}


class Scratch:
    """The folder `_scratch` below `folder` (a URI), which driver and executors share. It replaces files that a killed
    job left there, and removes all of them at the end."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark, self._folder = spark, below(folder, NAME)
        self._frames: list[DataFrame] = []
        self._stack = ExitStack()

    def keep(self, frame: DataFrame) -> DataFrame:
        """Write a frame; return one that reads the files."""
        uri = below(self._folder, str(len(self._frames)))
        frame.write.mode("overwrite").parquet(uri)
        written = self._spark.read.schema(frame.schema).parquet(exact(uri))
        self._frames.append(written)
        return written

    def __enter__(self) -> Self:
        self._stack.enter_context(override(self._spark, _COMPRESSED))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        remote, path = is_remote(self._spark), local_path(self._folder)
        if remote:  # a Connect client cannot remove files, but can replace them by empty ones
            for number, frame in enumerate(self._frames):
                empty = self._spark.createDataFrame([], frame.schema)
                empty.write.mode("overwrite").parquet(below(self._folder, str(number)))
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
        elif not remote:
            with suppress(Py4JJavaError):  # leftovers do no harm: the next job replaces them
                files, where = hadoop_path(self._spark, self._folder)
                files.delete(where, True)
