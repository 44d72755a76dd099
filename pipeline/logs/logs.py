"""duemq's topics in Kafka as DataFrames: commands, ledger entries, deliveries and dead letters.

`read_topics` reads committed records with their headers in ranges of offsets (`ranges.py`). The other functions take a
frame with the columns of Spark's Kafka source and return a frame; they also work on streams. Times are epoch ms in
`bigint` columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import orjson
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from duemq.model.messages.message import NO_KEY
from duemq.model.topics.rules import ID_CHARS
from duemq.model.topics.topic_names import OWN
from duemq.pipeline.logs import decode, envelopes
from duemq.pipeline.logs.kafka import Kafka, options_of, reading
from duemq.pipeline.logs.ranges import TopicRange

_arrow_udf: Final[Any] = cast(Any, F).arrow_udf  # its type hints lack the call without a function type
BUFFER: Final = "duemq.buffer"
LEDGER: Final = "duemq.ledger"
DEAD_LETTERS: Final = "duemq.dlq"
COMMAND_HEADER: Final = "duemq-command"
_BEFORE_PARTITION: Final = 2  # headers in the dead letter of a malformed record: duemq-reason, duemq-error
_SHARE_GROUP_HEADERS: Final = 3  # in a dead letter, after duemq-topic and duemq-reason (KIP-1191)
_SYSTEM_HEADERS: Final = 3  # in every delivered record: duemq-id, duemq-due, duemq-attempt
_MAX_RECORDS: Final = 250_000
"""The maximum number of records in a task: many tasks can read one partition."""


def read_topics(spark: SparkSession, kafka: Kafka, ranges: Iterable[TopicRange]) -> DataFrame:
    """The records in these ranges (`Logs.ranges`), in no order. See `kafka.reading`."""
    parts = [one for one in ranges if one.starts]
    if not parts:
        empty = (
            "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
            "timestampType int, headers array<struct<key: string, value: binary>>"
        )
        return spark.createDataFrame([], empty)
    name = options_of(kafka).names.on_brokers
    options = reading(kafka) | {
        "subscribe": ",".join(name(one.topic) for one in parts),
        "startingOffsets": _offsets({name(one.topic): one.starts for one in parts}),
        "endingOffsets": _offsets({name(one.topic): one.ends for one in parts}),
        "maxRecordsPerPartition": str(_MAX_RECORDS),
    }
    # Connectors before 4.0 do not support maxRecordsPerPartition.
    if (tasks := sum(one.count for one in parts) // _MAX_RECORDS) > sum(len(one.starts) for one in parts):
        options["minPartitions"] = str(tasks)
    return with_own_names(spark.read.format("kafka").options(**options).load(), kafka)


def with_own_names(records: DataFrame, kafka: Kafka) -> DataFrame:
    """The records with duemq's own topic names (`model/topics/topic_names.py`)."""
    prefix = options_of(kafka).names.prefix
    if prefix == OWN:
        return records
    of_destination = rf"^(retry\.|dlq\.)?{re.escape(prefix)}destination\."
    topic = F.regexp_replace("topic", of_destination, "$1destination.")
    return records.withColumn("topic", F.regexp_replace(topic, f"^{re.escape(prefix)}", OWN))


def _offsets(by_topic: Mapping[str, Mapping[int, int]]) -> str:
    return orjson.dumps(
        {topic: {str(p): at for p, at in offsets.items()} for topic, offsets in by_topic.items()}
    ).decode()


def header(name: str) -> Column:
    """The value of the first header with this name, or null. Header names may repeat."""
    return F.get(F.filter("headers", lambda one: one["key"] == name), F.lit(0))["value"]


def _at() -> Column:
    return F.unix_millis("timestamp")


def commands(buffer: DataFrame) -> DataFrame:
    """One row per record in the buffer topic. A record is one of duemq's own commands, or a plain client's command in
    headers.

    The columns are `shard`, `offset`, `at` (when the record was appended), and
    * `kind`: schedule, cancel, move, deliver_now, redrive, purge, import, or malformed;
    * `plain`: whether the record came from a plain Kafka client;
    * for a schedule: `due`, `topic`, `name` (with its prefix, or null), `expires` (0: never);
    * for a change: the first key of its message, `first_due`, `first_offset`, `first_row`, or the message's `name`;
      `due`: the new due time (null for a cancel or purge); `tag`: the tag of the job's step that sent it, or null;
    * for a file: `path`, `sha256`, `size`, `window`, `rows`;
    * `disputed`: whether another version of the server, or another machine, may call it malformed (`plain_records`);
    * `content`: xxhash64 of the payload; `metadata`: for a schedule, xxhash64 of key, labels and the client's headers
      (see `_metadata`); `fingerprint`: for a schedule with a name, equal for repeats, if both or neither are `plain`.
      A `name` that is not text becomes 0x and hex digits.

    The outcome of a command is in the ledger (`entries`). The input is read twice: by Spark's expressions, and by
    Python for the records of plain clients. For large inputs see `own_commands`.
    """
    return understood(own_commands(buffer))


def own_commands(buffer: DataFrame) -> DataFrame:
    """The `commands` in duemq's own records, and `said` for all others: their key and headers, as JSON with base64.

    A caller that reads many records can persist the result and pass it to `understood`.
    """
    first = F.get("headers", F.lit(0))
    own = F.coalesce((F.size("headers") == 1) & (first["key"] == COMMAND_HEADER) & F.col("key").isNull(), F.lit(False))
    null_value = F.when(F.col("value").isNull(), F.lit(True)).alias("is_null")
    slim = buffer.select(
        F.col("partition").alias("shard"), "offset", _at().alias("at"), own.alias("own"),
        F.when(own, F.coalesce(first["value"], F.lit(b""))).alias("envelope"),
        F.when(~own, F.to_json(F.struct("key", "headers", null_value))).alias("said"),
        F.xxhash64(F.coalesce("value", F.lit(b""))).alias("content"),
    )  # fmt: skip
    return envelopes.decoded(slim)


def understood(commands: DataFrame) -> DataFrame:
    """The result of `own_commands`, completed by the commands of plain clients."""
    own = commands.where("said is null").drop("said")
    plain = commands.where("said is not null").select("shard", "offset", "at", "said", "content")
    rows = plain.mapInArrow(decode.plain, decode.PLAIN).withColumn("metadata", envelopes.packed_hash("metadata"))
    of_value = F.when(F.col("fingerprint").isNotNull(), F.xxhash64("fingerprint", "content"))
    rows = rows.withColumn("fingerprint", of_value)
    of_return = F.concat_ws(":", "name", F.hex("fingerprint"))
    rows = rows.withColumn("name", F.when(F.col("name").startswith("r:"), of_return).otherwise(F.col("name")))
    return own.unionByName(rows.select(own.columns))


def entries(ledger: DataFrame) -> DataFrame:
    """One row per record in the ledger topic (`duemq.model.log.ledger.Entry`).

    `shard`, `ledger_offset`, `written` (when it was appended), `n`, `applied`, `cursor_due`, `cursor_offset`,
    `cursor_row`, `at`, `pending`, `checksum` (hex), `accepted`, `delivered`, `cancelled`, `dead`, `horizon`;
    `answers`: array of `offset`, `answer` (the number of an `Answer`); `deferred`: array of `due`, `offset`, `row` (the
    old key), `to_due`, `to_offset`, `to_row` (null for dead letters), `attempt`, `reason`; `imported`: array of
    `offset`, `rows`, `reason`; `lost_from`, `lost_to`: commands in [from, to) that were dropped unread; `base`: the
    entry to continue from, if an operator set it; `topics`: the topics that the cycle wrote to, null if they are not
    listed. `problem`: why a record is not an entry; the other columns of such a record are null. If the offset in a
    cursor is above 2**63 - 1, which means "all of this millisecond", it becomes 2**63 - 1.
    """
    slim = ledger.select(
        F.col("partition").alias("shard"), F.col("offset").alias("ledger_offset"), _at().alias("written"), "value"
    )
    return slim.mapInArrow(decode.entries, decode.ENTRIES)


def deliveries(records: DataFrame) -> DataFrame:
    """One row per record that duemq delivered: the records with a header `duemq-id`.

    `topic`, `partition`, `offset`, `at`, `by_broker` (whether the broker set `at`), `id` and its unchecked content:
    `shard` (65535 for a message without delay), `first_due`, `first_offset`, `first_row`, `mac` (all null for an
    invalid id); `due` and `attempt` from the headers; `content` and `metadata`: see `commands`; `key_hash`: see
    `decode.key_hashes`.
    """
    rows = records.select(*_record_columns(), _named(0, "duemq-id").alias("id"), *_carried()).where("id is not null")
    hashed = rows.withColumns({"metadata": _metadata(), "key_hash": _arrow_udf(decode.key_hashes, "int")("key")})
    return _selected(with_id(hashed), decode.DELIVERIES)


def dead_letters(records: DataFrame) -> DataFrame:
    """One row per record in the dead-letter topic: the columns of `deliveries`, and `reason`, `destination` (the
    message's topic), `command` and `command_shard` (offset and partition of a malformed record, which has no id; the
    partition is null in dead letters from older servers), and `shortened` (whether the payload was dropped because it
    was too large)."""
    # Read headers only at duemq's positions: the client's headers follow and may have any names.
    shortened = F.coalesce(F.get("headers", F.lit(0))["key"] == "duemq-shortened", F.lit(False))
    first = F.get("headers", shortened.cast("int"))
    third = F.get("headers", F.lit(_BEFORE_PARTITION) + shortened.cast("int"))
    of_command = F.coalesce(first["key"] == "duemq-reason", F.lit(False))
    rows = records.select(
        *_record_columns(),
        F.when(~of_command, _named(0, "duemq-id")).alias("id"),
        header("duemq-reason").cast("string").alias("reason"),
        header("duemq-topic").cast("string").alias("destination"),
        F.when(of_command, header("duemq-offset")).cast("string").try_cast("bigint").alias("command"),
        shortened.alias("shortened"),
        F.when(third["key"] == "duemq-partition", third["value"].cast("string").try_cast("int")).alias("command_shard"),
        *_carried(_SYSTEM_HEADERS + 2),
    )
    return _selected(with_id(rows.withColumn("metadata", _metadata())), decode.DEAD_LETTERS)


def with_id(frame: DataFrame) -> DataFrame:
    """The frame with the unchecked content of its column `id` (bytes, converted to text; see
    `duemq.model.messages.ids`): `shard`, `first_due`, `first_offset`, `first_row`, `mac`. All of them are null if the
    id has another length or other characters."""
    text = F.col("id").cast("string")
    # unbase64 skips other characters, so the result then has fewer bytes.
    raw = F.unbase64(F.translate(text, "-_+/", "+/**"))
    digits = frame.withColumns({"_raw": F.when(F.octet_length("id") == ID_CHARS, raw)}).withColumn(
        "_digits", F.when(F.octet_length("_raw") == _ID_BYTES, F.hex("_raw"))
    )
    return digits.withColumns(
        {name: envelopes.number("_digits", at, size, kind) for name, at, size, kind in _ID_FIELDS}
        | {"id": F.make_valid_utf8(text)}
    ).drop("_raw", "_digits")


_ID_BYTES: Final = ID_CHARS * 3 // 4
_ID_FIELDS: Final = (
    ("shard", 0, 2, "int"), ("first_due", 2, 6, "bigint"), ("first_offset", 8, 6, "bigint"),
    ("first_row", 14, 4, "bigint"), ("mac", 18, 6, "bigint"),
)  # fmt: skip
"""The fields of an id: name, first byte, number of bytes, and type."""


def _selected(frame: DataFrame, schema: str) -> DataFrame:
    """The columns of a schema, in order."""
    return frame.select(*(field.split()[0] for field in schema.split(", ")))


def _record_columns() -> list[Column]:
    return [
        F.col("topic"), F.col("partition"), F.col("offset"), _at().alias("at"),
        (F.col("timestampType") == 1).alias("by_broker"),
        _named(1, "duemq-due").cast("string").try_cast("bigint").alias("due"),
        _named(2, "duemq-attempt").cast("string").try_cast("int").alias("attempt"),
        F.xxhash64(F.coalesce("value", F.lit(b""))).alias("content"),
    ]  # fmt: skip


def _carried(before: int = _SYSTEM_HEADERS) -> list[Column]:
    """Columns of a delivered record: its key, whether its value is null, its labels as in the header, and the client's
    headers, which follow duemq's headers. `before`: how many headers precede the labels."""
    # A dead letter has the headers of share groups, and the number of redrives if there were any. Those of older
    # servers have neither.
    letter = F.coalesce(
        F.lit(before > _SYSTEM_HEADERS)
        & (F.get("headers", F.lit(before))["key"] == "__dlq.errors.topic")
        & (F.get("headers", F.lit(before + 2))["key"] == "__dlq.errors.message"),
        F.lit(False),
    )
    at = F.lit(before) + _SHARE_GROUP_HEADERS * letter.cast("int")
    at += F.coalesce(F.get("headers", at)["key"] == "duemq-redrives", F.lit(False)).cast("int")
    fourth = F.get("headers", at)
    labelled = F.coalesce(fourth["key"] == "duemq-labels", F.lit(False))
    first = at + 1 + labelled.cast("int")
    return [
        F.col("key"),
        F.col("value").isNull().alias("is_null"),
        F.when(labelled, fourth["value"]).alias("labels"),
        F.when(F.size("headers") >= first, F.slice("headers", first, F.size("headers"))).alias("own"),
    ]


def _metadata() -> Column:
    """The same hash as `envelopes.packed_hash` has for the command, which joins labels by LF and not by commas."""
    labels = F.translate(F.col("labels").cast("string"), ",", "\n").cast("binary")

    def packed(one: Column) -> Column:
        name, value = one["key"].cast("binary"), F.coalesce(one["value"], F.lit(b""))
        return F.concat(_length(name, 2), _length(value, 4), name, value)

    own = F.aggregate("own", F.lit(b""), lambda total, one: F.concat(total, packed(one)))
    return envelopes.metadata_hash(
        F.coalesce(F.octet_length("key"), F.lit(NO_KEY)), F.coalesce(F.octet_length("labels"), F.lit(0)),
        F.concat(*(F.coalesce(part, F.lit(b"")) for part in (F.col("key"), labels, _nulls(), own))),
    )  # fmt: skip


def _nulls() -> Column:
    """The header with the null marks of an envelope (`plain_records.metadata`); empty without nulls."""
    places = F.array_compact(F.transform("own", lambda one, at: F.when(one["value"].isNull(), F.size("own") - 1 - at)))
    digits = F.concat(
        F.coalesce(F.array_join(F.transform(places, lambda place: F.lpad(F.hex(place), 4, "0")), ""), F.lit("")),
        F.when(F.size(places) > 0, F.lit("FFFE")).otherwise(""),
        F.when(F.col("is_null"), F.lit("FFFF")).otherwise(""),
    )
    nulls, name = F.unhex(digits), F.lit(b"duemq-null")
    any_null = F.col("is_null") | F.exists("own", lambda one: one["value"].isNull())
    header = F.concat(_length(name, 2), _length(nulls, 4), name, nulls)
    return F.when(F.coalesce(any_null, F.lit(False)), header).otherwise(F.lit(b""))


def _length(of: Column, size: int) -> Column:
    return F.unhex(F.lpad(F.hex(F.octet_length(of)), 2 * size, "0"))


def _named(at: int, name: str) -> Column:
    """The value of a header that duemq writes at position `at`: reading it there costs a fraction of a search."""
    there = F.get("headers", F.lit(at))
    return F.when(there["key"] == name, there["value"]).otherwise(header(name))
