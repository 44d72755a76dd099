"""The streaming job that fills the history: it reads Kafka with a checkpoint, and writes each batch exactly once."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.storagelevel import StorageLevel

from duemq.model.errors import DuemqError
from duemq.model.topics.topic_names import OWN
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.history import rows
from duemq.pipeline.history.formats.base import SCHEMAS
from duemq.pipeline.history.table import HistoryTable
from duemq.pipeline.logs import logs
from duemq.pipeline.logs.kafka import Kafka, options_of, reading
from duemq.pipeline.logs.ranges import Logs, TopicRange
from duemq.pipeline.spark.failures import sentence_of
from duemq.pipeline.spark.progress import Teller

ALL: Final = "*"
_GRACE_S, _LOOK_S, _TRIGGER_S = 60.0, 0.2, 10.0


@dataclass(frozen=True, slots=True)
class LogSource:
    """`topics`: a regular expression that matches whole names of target topics, present and future. None: all except
    the dead letters of groups and destinations (`dlq.*`), which a purge trims; `ALL` includes them. `most`: the maximum
    number of records in a batch; None for no limit. `dead_letters`: duemq's setting `topics.dead_letter`."""

    kafka: Kafka
    topics: str | None = None
    most: int | None = 1_000_000
    dead_letters: str = logs.DEAD_LETTERS

    @property
    def options(self) -> dict[str, str | None]:
        """The options that decide which rows a history has."""
        prefix = options_of(self.kafka).names.prefix
        return {"topics": self.topics, "dead_letters": self.dead_letters, "prefix": prefix}


def pattern(source: LogSource) -> str:
    """A pattern for the ledger, the dead letters and the target topics of `source`, but for no other topic of duemq, of
    another cluster, or of Kafka itself. It is anchored, because Spark searches for it anywhere in a name."""
    names, topics = options_of(source.kafka).names, source.topics
    leads, targets = {None: (r"(?:retry\.)?", r"(?!dlq\.).*"), ALL: (r"(?:retry\.|dlq\.)?", ".*")}.get(
        topics, ("", topics)
    )
    parts = [re.escape(names.on_brokers(topic)) for topic in (logs.LEDGER, source.dead_letters)]
    others = [r"__|duemq\.", r"(?:retry|dlq)\.duemq\..+\.destination\."]
    if names.prefix != OWN:
        parts.append(rf"{leads}{re.escape(names.prefix)}(?=destination\.)(?:{targets})")
        others.append(r"(?:retry\.|dlq\.)?destination\.")
    return rf"^(?:{'|'.join(parts)}|(?!{'|'.join(others)})(?:{targets}))$"


def subscription(spark: SparkSession, source: LogSource) -> Any:
    """`pattern` compiled as a regular expression in Java. Raises BadInput."""
    java: Any = spark._jvm
    try:
        if source.topics not in (None, ALL):
            java.java.util.regex.Pattern.compile(source.topics)
        return java.java.util.regex.Pattern.compile(pattern(source))
    except PySparkException as error:
        why = str(error).partition("\n")[0]
        raise BadInput(f"topics: {source.topics!r} is no regular expression of Java: {why}") from error


def records(spark: SparkSession, source: LogSource, every_s: float | None = None) -> DataFrame:
    """The committed records in the topics, each once. A topic that appears later is read from its first record.

    `every_s`: how long a batch waits for `source.most` records; None: it does not wait. Raises BadInput. If retention
    has dropped unread records, the job fails.
    """
    options = reading(source.kafka) | {
        "subscribePattern": subscription(spark, source).pattern(),
        "startingOffsets": "earliest",
    }
    if source.most is not None:
        options["maxOffsetsPerTrigger"] = str(source.most)
        if every_s is not None:
            options |= {"minOffsetsPerTrigger": str(source.most), "maxTriggerDelay": _ms(every_s, "ms")}
    stream = logs.with_own_names(spark.readStream.format("kafka").options(**options).load(), source.kafka)
    # Only the values of ledger entries are read, so payloads are dropped here.
    value = F.when(F.col("topic") == logs.LEDGER, F.col("value")).alias("value")
    return stream.select("key", value, "topic", "partition", "offset", "timestamp", "timestampType", "headers")


class HistoryWriter:
    """Writes each batch to the table. If `add` is called again with a batch, it only writes the missing part."""

    def __init__(self, table: HistoryTable, source: LogSource, teller: Teller) -> None:
        self._table, self._source, self._teller = table, source, teller
        self.batches = self.deliveries = self.outcomes = 0
        self.at_work = threading.Event()
        self.failed: Exception | None = None
        """Why the last batch failed. Spark's own error would wrap it in stack traces from Python and Java."""

    def add(self, batch: DataFrame, number: int) -> None:
        self.at_work.set()
        try:
            missing = [kind for kind in SCHEMAS if not self._table.has(kind, number)]
            if missing:
                self._write(batch, number, missing)
            self.batches += 1
        except Exception as error:
            self.failed = error
            raise
        finally:
            self.at_work.clear()

    def _write(self, batch: DataFrame, number: int, missing: Sequence[str]) -> None:
        """Write the missing kinds of rows in a batch. Kafka is read once, and ledger entries are decoded once."""
        batch = batch.persist(StorageLevel.MEMORY_AND_DISK)
        entries = logs.entries(batch.where(F.col("topic") == logs.LEDGER)).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            delivered = rows.delivered(batch, self._source.dead_letters)
            letters = batch.where(F.col("topic") == self._source.dead_letters)
            count_rows = _counts(delivered, letters, entries).collect()
            counts = {row.what: row.messages for row in count_rows if row.what != "entries"}
            shards = [row.shard for row in count_rows if row.what == "entries"]
            counts["outcomes"] = counts.pop("letters") + sum(shard.answers + shard.imported for shard in shards)
            self._say_wrong(shards)
            if "deliveries" in missing and counts["deliveries"]:
                self._table.add("deliveries", number, delivered)
            if "outcomes" in missing and counts["outcomes"]:
                self._table.add("outcomes", number, self._outcomes(entries, letters, shards))
        finally:
            entries.unpersist()
            batch.unpersist()
        added = {kind: counts[kind] if kind in missing else 0 for kind in SCHEMAS}
        self.deliveries, self.outcomes = self.deliveries + added["deliveries"], self.outcomes + added["outcomes"]
        self._teller.says(f"batch {number}: {added['deliveries']:,} deliveries, {added['outcomes']:,} outcomes")

    def _say_wrong(self, shards: Sequence[Row]) -> None:
        if wrong := [shard for shard in shards if shard.wrong]:
            shown = "; ".join(f"partition {one.shard}, offset {one.wrong_at}: {one.problem}" for one in wrong[:3])
            count = sum(one.wrong for one in wrong)
            self._teller.says(f"{logs.LEDGER} has {count:,} records that are no entries; they are skipped: {shown}")

    def _outcomes(self, entries: DataFrame, letters: DataFrame, shards: Sequence[Row]) -> DataFrame:
        sound = entries.where("problem is null")
        outcomes = rows.imported(sound).unionByName(rows.died(logs.dead_letters(letters)))
        bounds = {one.shard: (one.first, one.last + 1) for one in shards if one.answers}
        commands = self._commands(entries.sparkSession, bounds)
        return outcomes if commands is None else outcomes.unionByName(rows.changed(rows.answered(sound), commands))

    def _commands(self, spark: SparkSession, bounds: Mapping[int, tuple[int, int]]) -> DataFrame | None:
        """The commands of each shard from the first answered command to the last."""
        if not bounds:
            return None
        buffer = Logs(self._source.kafka).ranges([logs.BUFFER])[logs.BUFFER]
        nothing = {shard: (start, start) for shard, start in buffer.log_starts.items()}
        offsets = nothing | dict(bounds)
        part: TopicRange = buffer.within(
            {shard: first for shard, (first, _) in offsets.items()}, {shard: end for shard, (_, end) in offsets.items()}
        )
        return logs.commands(logs.read_topics(spark, self._source.kafka, [part]))


def _counts(delivered: DataFrame, letters: DataFrame, entries: DataFrame) -> DataFrame:
    """Counts of a batch: what (deliveries, letters, entries), messages, and for entries shard (`rows.summary`)."""
    shards = rows.summary(entries).select(F.lit("entries").alias("what"), F.struct("*").alias("shard"))
    frame = shards.select("what", F.lit(0).cast("bigint").alias("messages"), "shard")
    nothing = F.lit(None).cast(frame.schema["shard"].dataType).alias("shard")
    for what, of in (("deliveries", delivered), ("letters", letters)):
        counted = of.agg(F.count("*").alias("messages")).select(F.lit(what).alias("what"), "messages", nothing)
        frame = frame.unionByName(counted)
    return frame


def run(
    spark: SparkSession, table: HistoryTable, source: LogSource, teller: Teller, stop: threading.Event,
    *, once: bool, every_s: float = 600.0,
) -> HistoryWriter:  # fmt: skip
    """Fill the table until `stop` is set; with `once`, up to the present ends of the topics. Returns the writer.

    A batch has `source.most` records, or the records that arrived within `every_s`, and becomes one file per table.
    A stop waits for the current batch. After JobFailed or Unavailable, the job can be run again.
    """
    topics = subscription(spark, source)
    table.begin(source.options)
    if others := sorted(topic for topic in table.offsets() if not topics.matcher(topic).find()):
        table.leave(others)
        teller.says(f"not read any more: {', '.join(others)}")
    writer = HistoryWriter(table, source, teller)
    stream = records(spark, source, None if once else every_s).writeStream.foreachBatch(writer.add)
    stream = stream.option("checkpointLocation", table.checkpoint)
    look = _ms(min(every_s, _TRIGGER_S), " milliseconds")
    stream = stream.trigger(availableNow=True) if once else stream.trigger(processingTime=look)
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


def _end(query: StreamingQuery, writer: HistoryWriter) -> None:
    """Stop the query, if possible between two batches. If a batch is interrupted, the next run repeats it."""
    deadline = time.monotonic() + _GRACE_S
    while query.isActive and writer.at_work.is_set() and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    query.stop()


def _ms(seconds: float, unit: str) -> str:
    return f"{int(seconds * 1_000)}{unit}"


def _reason(error: Exception) -> str:
    text, sentence = str(error), sentence_of(error)
    if "failOnDataLoss" in text or "data may have been lost" in text or "may have been missed" in text:
        return (
            "Kafka has dropped unread records (by retention, or because a topic was deleted or recreated): "
            f"see docs/guides/pipeline/history.md, What stops it. {sentence}"
        )
    return sentence
