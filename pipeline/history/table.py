"""The table of the history: two tables below a folder, in one of several formats, and the checkpoint of their job.

deliveries/, outcomes/  the tables, in the layout of the format (`formats/`)
_checkpoint/            Spark's checkpoint: the next offsets in the topics
_options.json           the options that decide which rows the tables have
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame, SparkSession

from duemq.model.failpoint import Failpoint, no_failpoint
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.files.uris import uri_of
from duemq.pipeline.history.formats.base import SCHEMAS, Format
from duemq.pipeline.history.formats.delta import delta
from duemq.pipeline.history.formats.iceberg import iceberg
from duemq.pipeline.history.formats.parquet import Parquet

CHECKPOINT: Final = "_checkpoint"
_OFFSETS: Final = (CHECKPOINT, "offsets")
_OPTIONS: Final = "_options.json"
FORMATS: Final[Mapping[str, Callable[[SparkSession, str, Failpoint], Format]]] = {
    "parquet": Parquet,
    "delta": delta,
    "iceberg": iceberg,
}
_MARKS: Final = {"delta": "_delta_log", "iceberg": "metadata"}
"""A folder that only a table in this format has."""


class HistoryTable:
    """A table below `path`, a folder on this machine or a URI. Only one job at a time may write to it.

    `format`: one of `FORMATS`; None means the format of the existing table, or parquet. Raises BadInput if the table
    has another format, or if Spark lacks the format's package.
    """

    def __init__(
        self, spark: SparkSession, path: str, failpoint: Failpoint = no_failpoint, *, format: str | None = None
    ) -> None:
        try:
            java: Any = spark._jvm
        except PySparkAttributeError as error:
            raise BadInput("a history needs a classic session: Spark Connect has no Java on this machine") from error
        self._spark, self._java = spark, java
        self.path = uri_of(path.rstrip("/") or "/")
        try:
            self._files: Any = self._at().getFileSystem(spark._jsc.hadoopConfiguration())
            present = self._present()
        except Py4JJavaError as error:
            raise BadInput(f"{self.path}: Spark cannot reach it: {error.java_exception}") from error
        if format is not None and format not in FORMATS:
            raise BadInput(f"format: {format} is not one of {', '.join(FORMATS)}")
        if None not in (format, present) and format != present:
            raise BadInput(f"{self.path} is a table in the format {present}, not {format}: name another folder")
        self.format: str = present or format or "parquet"
        self._tables = FORMATS[self.format](spark, self.path, failpoint)

    def _at(self, *parts: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path("/".join((self.path, *parts)))

    def _present(self) -> str | None:
        kinds = [kind for kind in SCHEMAS if self._files.exists(self._at(kind))]
        for format, mark in _MARKS.items():
            if any(self._files.exists(self._at(kind, mark)) for kind in kinds):
                return format
        return "parquet" if kinds else None

    @property
    def checkpoint(self) -> str:
        return f"{self.path}/{CHECKPOINT}"

    def read(self, kind: str) -> DataFrame:
        """All rows, as in `SCHEMAS`. `kind`: deliveries or outcomes. Raises BadInput if the table does not exist."""
        self._need(kind)
        return self._tables.read(kind)

    def _need(self, kind: str) -> None:
        if not self._files.exists(self._at(kind)):
            raise BadInput(f"{self.path}: there is no history; `duemq spark history` makes one")

    def begin(self, options: Mapping[str, str | None] = MappingProxyType({})) -> None:
        """Prepare the table for a job: create its folders and remove what a crash has left. Raises JobFailed if the
        checkpoint is gone, and BadInput if the table was begun with other `options`."""
        started = self._files.exists(self._at(CHECKPOINT, "metadata"))
        if not started and self._present() and not self._tables.is_empty():
            raise JobFailed(
                f"{self.path} has batches, but no {CHECKPOINT}, so the offsets to continue from are unknown: "
                "restore it, or begin a new table beside this one"
            )
        # Options may change until the first batch is written.
        first = json.loads(self._text(_OPTIONS) or "null") if self._last_offsets() else None
        if first is not None and (other := [name for name in options if first.get(name) != options[name]]):
            changes = "; ".join(
                f"{name}: {first.get(name) or 'default'}, now {options[name] or 'default'}" for name in other
            )
            raise BadInput(f"{self.path} was begun with other options ({changes}): use those, or begin a new table")
        self._tables.make()
        if first is None and options:
            self._write(json.dumps(dict(options)), _OPTIONS)

    def offsets(self) -> Mapping[str, Mapping[str, int]]:
        """The next offset of each partition, by the topic's name on the brokers."""
        numbers = self._last_offsets()
        return self._offsets(numbers[-1])[1] if numbers else {}

    def leave(self, topics: Collection[str]) -> None:
        """Remove topics from the checkpoint, because Spark does not start if it has topics outside its subscription.

        Earlier releases read most of duemq's own topics, and topics with a name that only contains the pattern.
        """
        for number in self._last_offsets():  # two files: the start and the end of a batch that was interrupted
            head, offsets = self._offsets(number)
            if left := {topic: at for topic, at in offsets.items() if topic not in topics}:
                self._replace("\n".join((*head, json.dumps(left, separators=(",", ":")))), *_OFFSETS, number)

    def _last_offsets(self) -> list[str]:
        """The names of the last two files with offsets; each batch has one file."""
        if not self._files.exists(self._at(*_OFFSETS)):
            return []
        names = (status.getPath().getName() for status in self._files.listStatus(self._at(*_OFFSETS)))
        return sorted((name for name in names if name.isdigit()), key=int)[-2:]

    def _offsets(self, number: str) -> tuple[list[str], dict[str, dict[str, int]]]:
        """The lines before the offsets in a batch's file, and the offsets by topic and partition."""
        *head, last = (self._text(*_OFFSETS, number) or "{}").splitlines()
        return head, json.loads(last)

    def _text(self, *parts: str) -> str | None:
        if not self._files.exists(self._at(*parts)):
            return None
        stream = self._files.open(self._at(*parts))
        try:
            text: str = self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            return text
        finally:
            stream.close()

    def _write(self, text: str, *parts: str) -> None:
        stream = self._files.create(self._at(*parts), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def _replace(self, text: str, *parts: str) -> None:
        """Replace a file atomically."""
        half = f".{parts[-1]}.new"
        self._write(text, *parts[:-1], half)
        gateway = self._spark.sparkContext._gateway
        assert gateway is not None
        rename = self._java.org.apache.hadoop.fs.Options.Rename
        options = gateway.new_array(rename, 1)
        options[0] = rename.OVERWRITE
        new = self._at(*parts)
        conf = self._spark._jsc.hadoopConfiguration()
        context = self._java.org.apache.hadoop.fs.FileContext.getFileContext(new.toUri(), conf)
        context.rename(self._at(*parts[:-1], half), new, options)

    def has(self, kind: str, number: int) -> bool:
        """Whether the table has a batch."""
        return self._tables.has(kind, number)

    def add(self, kind: str, number: int, rows: DataFrame) -> None:
        """Write a batch, unless the table has it."""
        self._tables.add(kind, number, rows)

    def compact(self, kind: str, below_bytes: int) -> tuple[int, int]:
        """See `Format.compact`. Raises BadInput if the table does not exist."""
        self._need(kind)
        return self._tables.compact(kind, below_bytes)
