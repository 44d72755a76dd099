"""Sends rows as commands to duemq's buffer topic through Spark's Kafka sink: batch or stream, exactly once by name."""

import duemq.pipeline.needs_spark  # noqa: F401
from duemq.pipeline.send.buffer_topic import shards_at, shards_of
from duemq.pipeline.send.commands import commands_of, fields_of, rejects_of, shard_of
from duemq.pipeline.send.job import SendResult, send
from duemq.pipeline.send.rules import sendable
from duemq.pipeline.send.stream import send_stream

__all__ = [
    "SendResult",
    "commands_of",
    "fields_of",
    "rejects_of",
    "send",
    "send_stream",
    "sendable",
    "shard_of",
    "shards_at",
    "shards_of",
]
