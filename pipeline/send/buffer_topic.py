"""The buffer topic, as Spark's Kafka sink has to know it. How many shards a cluster has is read, never guessed: with
another number every name would go to a wrong partition."""

from __future__ import annotations

from typing import Final

from duemq.pipeline.logs.kafka import Kafka, client, options_of
from duemq.pipeline.logs.logs import BUFFER
from duemq.pipeline.logs.ranges import Logs
from duemq.pipeline.logs.server import Server

# Spark ends a task with a flush, so lingering costs nothing. Nothing is compressed: duemq need not have the codec.
_PRODUCER: Final = {
    "kafka.acks": "all", "kafka.enable.idempotence": "true", "kafka.linger.ms": "50",
    "kafka.batch.size": str(512 << 10), "kafka.buffer.memory": str(64 << 20), "kafka.max.request.size": str(8 << 20),
}  # fmt: skip


def shards_of(kafka: Kafka) -> int:
    """By the partitions of the buffer topic. Raises Unavailable, and BadInput where no duemq has made it yet."""
    return len(Logs(kafka).ranges([BUFFER])[BUFFER].starts)


def buffer_of(kafka: Kafka) -> str:
    """The name of the buffer topic on the brokers. Raises BadConfig."""
    return options_of(kafka).names.on_brokers(BUFFER)


def shards_at(server: Server) -> int:
    """By `GET /v1/cluster`. Raises what the client raises."""
    with server.client() as client:
        return len(client.cluster().shards)


def sink_options(kafka: Kafka) -> dict[str, str]:
    """Options of Spark's Kafka sink: how to reach Kafka, and a producer with acks=all.

    A record may have 8 MiB, which is what duemq's own topics take by default. Raises BadConfig.
    """
    return client(kafka) | _PRODUCER
