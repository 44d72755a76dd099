"""Turns rows into records as a plain Kafka client sends them (docs/guides/kafka.md), for Spark's Kafka sink, or into
the columns that `format("duemq")` writes.

The sink writes each row at least once. A name belongs to one shard, which accepts it once, so each row becomes one
message.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duemq.model.messages.names import CLIENT
from duemq.pipeline.bulk_schedule.rules import REASON, BulkRules, rejected
from duemq.pipeline.columns import FIELDS, OWN, Columns
from duemq.pipeline.errors import BadInput
from duemq.pipeline.logs.logs import BUFFER
from duemq.pipeline.send.rules import sendable

HEADERS: Final = "array<struct<key:string,value:binary>>"


def commands_of(
    frame: DataFrame,
    columns: Columns,
    shards: int,
    rules: BulkRules | None = None,
    now: int | None = None,
    past: bool = False,
) -> DataFrame:
    """`key`, `value`, `headers`, `partition` and `topic` for Spark's Kafka sink, with `.write` or `.writeStream`: a
    command for each row that can be sent; `rejects_of` returns the others.

    `columns`: must have `name`. `shards`: see `shards_of`. `rules`, `now`, `past`: see `sendable`. If rows with the
    same name differ, the shard accepts the first one that it reads. Raises BadInput.
    """
    return commands(sendable(frame, columns, rules, now, past), columns, shards)


def rejects_of(
    frame: DataFrame, columns: Columns, rules: BulkRules | None = None, now: int | None = None, past: bool = False
) -> DataFrame:
    """The rows that cannot be sent, unchanged, with a `reason`. The arguments are those of `commands_of`."""
    return rejected(sendable(frame, columns, rules, now, past))


def shard_of(name: Column, shards: int) -> Column:
    """The shard of a name (int), computed as by `shard_of_name` (`model/messages/names.py`)."""
    prefixed = F.concat(F.lit(CLIENT.decode()), name).cast("binary")
    return F.pmod(F.crc32(prefixed), F.lit(shards)).cast("int")


def commands(judged_rows: DataFrame, columns: Columns, shards: int, buffer: str = BUFFER) -> DataFrame:
    """The commands for rows from `sendable`: see `commands_of`. `buffer`: the buffer topic's name on the brokers."""
    if shards < 1:
        raise BadInput(f"a cluster has one shard or more, not {shards}")
    name = F.col(OWN + "name")
    good = judged_rows.where(F.col(OWN + REASON).isNull())
    return good.select(
        F.col(OWN + "key").alias("key"), F.col(OWN + "payload").alias("value"), _headers(columns).alias("headers"),
        shard_of(name, shards).alias("partition"), F.lit(buffer).alias("topic"),
    )  # fmt: skip


def fields_of(
    frame: DataFrame, columns: Columns, rules: BulkRules | None = None, now: int | None = None, past: bool = False
) -> DataFrame:
    """The columns that `format("duemq")` writes, for the rows that can be sent; `rejects_of` returns the others. The
    arguments are those of `commands_of`."""
    return fields(sendable(frame, columns, rules, now, past))


def fields(judged_rows: DataFrame) -> DataFrame:
    """The columns for rows from `sendable`: see `fields_of`."""
    good = judged_rows.where(F.col(OWN + REASON).isNull())
    return good.select(*(F.col(OWN + name).alias(name) for name in FIELDS if OWN + name in judged_rows.columns))


def _headers(columns: Columns) -> Column:
    """duemq's headers, then the message's own headers. Times are epoch ms, so that a repeat has the same bytes."""
    none = F.array().cast(HEADERS)
    parts = [
        F.array(
            _header("duemq-topic", F.col(OWN + "topic")), _header("duemq-name", F.col(OWN + "name")),
            _header("duemq-deliver-at", F.col(OWN + "due_ms").cast("string")),
        )
    ]  # fmt: skip
    if columns.labels is not None:
        labels = F.col(OWN + "labels")
        text = F.array(_header("duemq-labels", F.array_join(labels, ",")))
        parts.append(F.when(F.size(labels) > 0, text).otherwise(none))
    if columns.expires is not None:
        expires = F.col(OWN + "expires_ms")
        text = F.array(_header("duemq-expires-at", expires.cast("string")))
        parts.append(F.when(expires.isNotNull(), text).otherwise(none))
    if columns.has_headers:
        own = F.transform(F.col(OWN + "headers"), lambda one: _pair(one["name"], one["value"]))
        parts.append(F.coalesce(own, none))
    return F.concat(*parts).cast(HEADERS)


def _header(name: str, text: Column) -> Column:
    return _pair(F.lit(name), text.cast("binary"))


def _pair(name: Column, value: Column) -> Column:
    return F.struct(name.alias("key"), value.alias("value"))
