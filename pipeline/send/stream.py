"""Sends a stream. If a query ends during a batch, Spark repeats the batch; its rows are then duplicates by name."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from duemq.pipeline.bulk_schedule.rules import REASON, BulkRules, rejected
from duemq.pipeline.columns import OWN, Columns
from duemq.pipeline.errors import BadInput
from duemq.pipeline.files.patterns import exact
from duemq.pipeline.files.uris import below, uri_of
from duemq.pipeline.logs.kafka import Kafka
from duemq.pipeline.send.buffer_topic import buffer_of, shards_of, sink_options
from duemq.pipeline.send.commands import commands
from duemq.pipeline.send.rules import sendable

METRICS: Final = "duemq_send"
"""The name in the query's `observedMetrics` of a batch's `rows` and `rejected`, for queries without `rejects`."""


def send_stream(
    frame: DataFrame,
    columns: Columns,
    kafka: Kafka,
    checkpoint: str,
    *,
    rejects: str | None,
    every: str | None = None,
    once: bool = False,
    shards: int | None = None,
    past: bool = False,
    rules: BulkRules | None = None,
) -> StreamingQuery:
    """Start a query that sends the rows of a stream, each once under its name. `checkpoint`: a folder for this query
    only. Folders are paths on this machine, or URIs.

    `rejects`: a folder in which each batch with rejected rows gets a folder `query=ID/batch=N`, with the ID in the
    checkpoint; None: they are only counted, see `METRICS`. `every`: the minimum time between the starts of two batches,
    such as `1 second`; None: no pause. `once`: end after the rows that are available now. `shards`, `past`, `rules`:
    see `send`. Raises BadInput, Unavailable and BadConfig.
    """
    if not frame.isStreaming:
        raise BadInput("this frame is not a stream: send() sends a table")
    shards, options = shards or shards_of(kafka), sink_options(kafka)
    if rejects is None:
        counts = F.count("*").alias("rows"), F.count(OWN + REASON).alias("rejected")
        judged_rows = sendable(frame, columns, rules, past=past).observe(METRICS, *counts)
        query = commands(judged_rows, columns, shards, buffer_of(kafka)).writeStream.format("kafka").options(**options)
    else:
        sendable(frame, columns, rules)  # raises BadInput now, not in the first batch
        root, of = uri_of(rejects), shards
        metadata = exact(below(uri_of(checkpoint), "metadata"))

        def one(batch: DataFrame, number: int) -> None:
            judged_rows = sendable(batch, columns, rules, past=past)
            commands(judged_rows, columns, of, buffer_of(kafka)).write.format("kafka").options(**options).save()
            bad = rejected(judged_rows)
            if not bad.isEmpty():
                query = batch.sparkSession.read.schema("id string").json(metadata).first()
                assert query is not None
                bad.write.mode("overwrite").parquet(below(root, f"query={query.id}/batch={number}"))

        query = frame.writeStream.foreachBatch(one)
    if once:
        query = query.trigger(availableNow=True)
    elif every is not None:
        query = query.trigger(processingTime=every)
    return query.option("checkpointLocation", uri_of(checkpoint)).start()
