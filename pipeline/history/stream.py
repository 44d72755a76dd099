"""The streaming job that fills the history: Spark's Kafka source, its checkpoint, and a folder per batch."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.storagelevel import StorageLevel

from duemq.model.errors import DuemqError
from duemq.pipeline import logs
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.history import rows
from duemq.pipeline.history.table import HistoryTable
from duemq.pipeline.kafka import Kafka, reading
from duemq.pipeline.progress import Teller
from duemq.pipeline.ranges import Logs, TopicRange
from duemq.pipeline.workers import sentence_of

ALL: Final = ".*"
_GRACE_S, _LOOK_S = 60.0, 0.2


@dataclass(frozen=True, slots=True)
class Source:
    """`topics`: a regular expression for the names of target topics, those to come as well. `most`: records in a batch;
    None for no limit."""

    kafka: Kafka
    topics: str = ALL
    most: int | None = 1_000_000


def pattern(topics: str) -> str:
    """What Spark subscribes to: these target topics, the ledger and the dead letters, never the commands' topic or what
    Kafka keeps for itself. Raises BadInput."""
    try:
        re.compile(topics)
    except re.error as error:
        raise BadInput(f"topics: {topics!r} is no regular expression: {error}") from error
    ours = "|".join(re.escape(topic) for topic in (logs.LEDGER, logs.DEAD_LETTERS))
    return rf"(?:{ours})|(?!duemq\.|__)(?:{topics})"


def records(spark: SparkSession, source: Source) -> DataFrame:
    """The committed records of the topics, each once; of topics that appear later from their first one on.

    Raises BadInput. What retention dropped before it was read stops the job: nothing is missing without a word.
    """
    options = reading(source.kafka) | {
        "subscribePattern": pattern(source.topics), "startingOffsets": "earliest",
    }  # fmt: skip
    if source.most is not None:
        options["maxOffsetsPerTrigger"] = str(source.most)
    found = spark.readStream.format("kafka").options(**options).load()
    # Payloads are not kept: only entries of the ledger are read.
    value = F.when(F.col("topic") == logs.LEDGER, F.col("value")).alias("value")
    return found.select("key", value, "topic", "partition", "offset", "timestamp", "timestampType", "headers")


class Writer:
    """What is done with each batch. `add` may be called again with a batch, and then writes what is missing of it."""

    def __init__(self, table: HistoryTable, source: Source, teller: Teller) -> None:
        self._table, self._source, self._teller = table, source, teller
        self.batches = self.deliveries = self.fates = 0
        self.at_work = threading.Event()
        self.failed: Exception | None = None
        """Why the last batch was not written: Spark tells it wrapped in traces of two languages."""

    def add(self, batch: DataFrame, number: int) -> None:
        self.at_work.set()
        batch.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            delivered = self._write("deliveries", number, rows.delivered(batch))
            fates = self._write("fates", number, self._fates(batch)) if not self._table.has("fates", number) else 0
        except Exception as error:
            self.failed = error
            raise
        finally:
            batch.unpersist()
            self.at_work.clear()
        self.batches, self.deliveries, self.fates = self.batches + 1, self.deliveries + delivered, self.fates + fates
        self._teller.says(f"batch {number}: {delivered:,} deliveries, {fates:,} fates")

    def _write(self, kind: str, number: int, found: DataFrame) -> int:
        """How many rows were written."""
        if self._table.has(kind, number):
            return 0
        found = found.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            if count := found.count():
                self._table.add(kind, number, found)
            return count
        finally:
            found.unpersist()

    def _fates(self, batch: DataFrame) -> DataFrame:
        entries = logs.entries(batch.where(F.col("topic") == logs.LEDGER)).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            if (
                wrong := entries.where("problem is not null")
                .select("shard", "ledger_offset", "problem")
                .limit(3)
                .collect()
            ):
                shown = "; ".join(f"partition {row.shard}, offset {row.ledger_offset}: {row.problem}" for row in wrong)
                self._teller.says(f"{logs.LEDGER} has records that are no entries, and tell nothing: {shown}")
            sound = entries.where("problem is null")
            answers = rows.answered(sound)
            bounds = answers.groupBy("shard").agg(F.min("command"), F.max("command")).collect()
            asked = self._commands(batch.sparkSession, {shard: (first, last + 1) for shard, first, last in bounds})
            dead = logs.dead_letters(batch.where(F.col("topic") == logs.DEAD_LETTERS))
            parts = [rows.adopted(sound), rows.died(dead)]
            if asked is not None:
                parts.append(rows.changed(answers, asked))
            found = parts[0]
            for more in parts[1:]:
                found = found.unionByName(more)
            return found.localCheckpoint()
        finally:
            entries.unpersist()

    def _commands(self, spark: SparkSession, bounds: Mapping[int, tuple[int, int]]) -> DataFrame | None:
        """The commands that were answered: of each shard those from the first to the last of them."""
        if not bounds:
            return None
        buffer = Logs(self._source.kafka).ranges([logs.BUFFER])[logs.BUFFER]
        nothing = {shard: (start, start) for shard, start in buffer.log_starts.items()}
        wanted = nothing | dict(bounds)
        part: TopicRange = buffer.within(
            {shard: first for shard, (first, _) in wanted.items()}, {shard: end for shard, (_, end) in wanted.items()}
        )
        return logs.commands(logs.read_topics(spark, self._source.kafka, [part]))


def run(
    spark: SparkSession, table: HistoryTable, source: Source, teller: Teller, stop: threading.Event,
    *, once: bool, every_s: float = 10.0,
) -> Writer:  # fmt: skip
    """Fill the table until `stop` is set; with `once` up to what the topics hold now. What was done, in the end.

    A batch that is under way when it is to stop is finished. Raises JobFailed, or Unavailable; the job can be run
    again then.
    """
    table.begin()
    writer = Writer(table, source, teller)
    stream = records(spark, source).writeStream.foreachBatch(writer.add).option("checkpointLocation", table.checkpoint)
    every = f"{int(every_s * 1_000)} milliseconds"
    stream = stream.trigger(availableNow=True) if once else stream.trigger(processingTime=every)
    query = stream.start()
    try:
        while query.isActive and not stop.wait(_LOOK_S):
            pass
        _end(query, writer)
    except (PySparkException, Py4JError) as error:
        raise JobFailed(_reason(error)) from error
    if (failed := query.exception()) is not None:
        if isinstance(writer.failed, DuemqError):
            raise writer.failed
        raise JobFailed(_reason(writer.failed or failed)) from failed
    return writer


def _end(query: StreamingQuery, writer: Writer) -> None:
    """Stop between two batches if that comes soon: a batch that is cut short is only run again."""
    deadline = time.monotonic() + _GRACE_S
    while query.isActive and writer.at_work.is_set() and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    query.stop()


def _reason(error: Exception) -> str:
    text, sentence = str(error), sentence_of(error)
    if "failOnDataLoss" in text or "data may have been lost" in text or "may have been missed" in text:
        return (
            "Kafka has dropped records that were not read yet (retention, or a topic that was deleted or made anew): "
            f"see docs/pipeline/history.md, What stops it. {sentence}"
        )
    return sentence
