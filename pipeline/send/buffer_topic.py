"""The buffer topic for Spark's Kafka sink. The number of shards is always read from the cluster: with a wrong number,
names would go to the wrong partitions."""

from __future__ import annotations

from typing import Final

from duemq.pipeline.logs.kafka import Kafka, client, options_of
from duemq.pipeline.logs.logs import BUFFER
from duemq.pipeline.logs.ranges import Logs
from duemq.pipeline.logs.server import Server

# Spark flushes at the end of a task, so lingering costs nothing. No compression, because duemq may not have the codec.
_PRODUCER: Final = {
    "kafka.acks": "all", "kafka.enable.idempotence": "true", "kafka.linger.ms": "50",
    "kafka.batch.size": str(512 << 10), "kafka.buffer.memory": str(64 << 20), "kafka.max.request.size": str(8 << 20),
}  # fmt: skip


def shards_of(kafka: Kafka) -> int:
    """How many partitions the buffer topic has. Raises Unavailable, and BadInput if duemq has not created it yet."""
    return len(Logs(kafka).ranges([BUFFER])[BUFFER].starts)


def buffer_of(kafka: Kafka) -> str:
    """The name of the buffer topic on the brokers. Raises BadConfig."""
    return options_of(kafka).names.on_brokers(BUFFER)


def shards_at(server: Server) -> int:
    """The number of shards, read from `GET /v1/cluster`. Raises the client's errors."""
    with server.client() as client:
        return len(client.cluster().shards)


def sink_options(kafka: Kafka) -> dict[str, str]:
    """The options for Spark's Kafka sink: the connection, and a producer with acks=all.

    A record may have up to 8 MiB, the default limit of duemq's own topics. Raises BadConfig.
    """
    return client(kafka) | _PRODUCER
