"""Frames that a job computes once and reads many times: Parquet files in a folder that is removed after the job.

A persisted frame keeps the plan that computed it, and Spark analyses this whole plan again for every step on top of it.
Files are read by a plan of one line. They use none of the executors' memory, outlive the executor that wrote them, and
keep plans short enough for a Connect client to send: protobuf accepts no message that is nested more than 100 deep, as
the plan of a few joins over nested expressions can be.
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
# Spark assumes that files are as small in memory as on disk: it would broadcast millions of rows from these files.
_COMPRESSED: Final = {"spark.sql.sources.fileCompressionFactor": "10.0"}


class Scratch:
    """The folder `_scratch` below `folder` (`files.uris.uri_of`), which driver and executors share. Files that a killed
    job left there are replaced; at the end, all files are removed."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark, self._folder = spark, below(folder, NAME)
        self._frames: list[DataFrame] = []
        self._stack = ExitStack()

    def keep(self, frame: DataFrame) -> DataFrame:
        """Write a frame to files, and return a frame that reads them."""
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
        if remote:  # a Connect client cannot remove the folder there, but it can make the files small
            for number, frame in enumerate(self._frames):
                empty = self._spark.createDataFrame([], frame.schema)
                empty.write.mode("overwrite").parquet(below(self._folder, str(number)))
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
        elif not remote:
            with suppress(Py4JJavaError):  # remaining files do no harm: the next job replaces them
                files, where = hadoop_path(self._spark, self._folder)
                files.delete(where, True)
