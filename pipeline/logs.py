"""duemq's topics in Kafka as DataFrames: commands, ledger entries, deliveries and dead letters.

`read_topics` is the edge: it reads records, committed ones, with headers, in ranges of offsets (`ranges.py`). All else
takes a frame with the columns of Spark's Kafka source and gives a frame, and works on streams as well.
Times are epoch ms in `bigint` columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import orjson
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from duemq.pipeline import decode
from duemq.pipeline.kafka import Kafka, reading
from duemq.pipeline.ranges import TopicRange

BUFFER: Final = "duemq.buffer"
LEDGER: Final = "duemq.ledger"
DEAD_LETTERS: Final = "duemq.dlq"


def read_topics(spark: SparkSession, kafka: Kafka, ranges: Iterable[TopicRange]) -> DataFrame:
    """The records of these ranges (`Logs.ranges`), in no order. See `kafka.reading`."""
    wanted = [one for one in ranges if one.starts]
    if not wanted:
        empty = (
            "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
            "timestampType int, headers array<struct<key: string, value: binary>>"
        )
        return spark.createDataFrame([], empty)
    options = reading(kafka) | {
        "subscribe": ",".join(one.topic for one in wanted),
        "startingOffsets": _offsets({one.topic: one.starts for one in wanted}),
        "endingOffsets": _offsets({one.topic: one.ends for one in wanted}),
    }
    return spark.read.format("kafka").options(**options).load()


def _offsets(by_topic: Mapping[str, Mapping[int, int]]) -> str:
    return orjson.dumps(
        {topic: {str(p): at for p, at in offsets.items()} for topic, offsets in by_topic.items()}
    ).decode()


def header(name: str) -> Column:
    """The value of the first header of this name; null where there is none. Header names may repeat."""
    return F.get(F.filter("headers", lambda one: one["key"] == name), F.lit(0))["value"]


def _at() -> Column:
    return F.unix_millis("timestamp")


def commands(buffer: DataFrame) -> DataFrame:
    """One row per record of the buffer topic: what it asks for, by duemq's own records or by headers of a plain client.

    `shard`, `offset`, `at` (when it was appended), and
    * `kind`: schedule, cancel, move, deliver_now, redrive, adopt, or malformed;
    * `plain`: whether it came from a plain Kafka client;
    * of a schedule: `due`, `topic`, `name` (with its prefix; null for none), `expires` (0 for never);
    * of a change: the key its message was first placed under, `first_due`, `first_offset`, `first_row`, or the `name`
      of that message; `due`: when it is due then (null for a cancel);
    * of a file: `path`, `sha256`, `size`, `window`, `rows`;
    * `content`: xxhash64 of the payload.

    Nothing is decided here: whether it took effect is what the ledger says of its offset (`entries`).
    """
    own = (F.size("headers") == 1) & (F.get("headers", F.lit(0))["key"] == "duemq-command") & F.col("key").isNull()
    slim = buffer.select(
        F.col("partition").alias("shard"), "offset", _at().alias("at"),
        F.when(own, F.get("headers", F.lit(0))["value"]).alias("envelope"),
        # As text: a struct of arrays that is mostly null costs Spark's Arrow writer three times what all else does.
        F.when(~F.coalesce(own, F.lit(False)), F.to_json(F.struct("key", "headers"))).alias("plain"),
        F.xxhash64(F.coalesce("value", F.lit(b""))).alias("content"),
    )  # fmt: skip
    return slim.mapInArrow(decode.commands, decode.COMMANDS)


def entries(ledger: DataFrame) -> DataFrame:
    """One row per record of the ledger topic (`duemq.model.ledger.Entry`).

    `shard`, `ledger_offset`, `written` (when it was appended), `n`, `applied`, `cursor_due`, `cursor_offset`,
    `cursor_row`, `at`, `pending`, `checksum` (hex), `accepted`, `delivered`, `cancelled`, `dead`, `horizon`;
    `answers`: array of `offset`, `answer` (the number of an `Answer`); `deferred`: array of `due`, `offset`, `row` (the
    key it had), `to_due`, `to_offset`, `to_row` (null for the dead letters), `attempt`, `reason`; `adopted`: array of
    `offset`, `rows`, `reason`. `problem` says what is wrong with a record that is no entry; the rest is null then.
    Offsets of cursors above 2**63 - 1, which stand for "all of this millisecond", are 2**63 - 1.
    """
    slim = ledger.select(
        F.col("partition").alias("shard"), F.col("offset").alias("ledger_offset"), _at().alias("written"), "value"
    )
    return slim.mapInArrow(decode.entries, decode.ENTRIES)


def deliveries(records: DataFrame) -> DataFrame:
    """One row per record that duemq delivered: those with a header `duemq-id`.

    `topic`, `partition`, `offset`, `at`, `by_broker` (whether the broker has set that time), `id` as it stands there,
    what the id says without being checked: `shard` (65535 for a message without delay), `first_due`, `first_offset`,
    `first_row`, `mac` (all null where it is no id at all); `due` and `attempt` as consumers see them; `content`.
    """
    found = records.select(*_seen(), _named(0, "duemq-id").alias("id"))
    return found.where("id is not null").mapInArrow(decode.deliveries, decode.DELIVERIES)


def dead_letters(records: DataFrame) -> DataFrame:
    """One row per record of the dead-letter topic: the columns of `deliveries`, and
    `reason`, `target` (the topic it was for), `command` (the offset of a record that was malformed: it has no id)."""
    found = records.select(
        *_seen(),
        _named(0, "duemq-id").alias("id"),
        header("duemq-reason").cast("string").alias("reason"),
        header("duemq-topic").cast("string").alias("target"),
        header("duemq-offset").cast("string").try_cast("bigint").alias("command"),
    )
    return found.mapInArrow(decode.deliveries, decode.DEAD_LETTERS)


def _seen() -> list[Column]:
    return [
        F.col("topic"), F.col("partition"), F.col("offset"), _at().alias("at"),
        (F.col("timestampType") == 1).alias("by_broker"),
        _named(1, "duemq-due").cast("string").try_cast("bigint").alias("due"),
        _named(2, "duemq-attempt").cast("string").try_cast("int").alias("attempt"),
        F.xxhash64(F.coalesce("value", F.lit(b""))).alias("content"),
    ]  # fmt: skip


def _named(at: int, name: str) -> Column:
    """A header that stands at this place in what duemq delivers: a look there costs a fraction of a search."""
    there = F.get("headers", F.lit(at))
    return F.when(there["key"] == name, there["value"]).otherwise(header(name))
