"""What Spark's Kafka sink has to be told to write commands."""

from __future__ import annotations

from typing import Final

from duemq.pipeline.logs.kafka import Kafka, client

# Spark ends a task with a flush, so lingering costs nothing. Nothing is compressed: duemq need not have the codec.
_PRODUCER: Final = {
    "kafka.acks": "all", "kafka.enable.idempotence": "true", "kafka.linger.ms": "50",
    "kafka.batch.size": str(512 << 10), "kafka.buffer.memory": str(64 << 20), "kafka.max.request.size": str(8 << 20),
}  # fmt: skip


def writing(kafka: Kafka) -> dict[str, str]:
    """Its options: how Kafka is reached, and a producer that every in-sync replica has to acknowledge.

    A record may have 8 MiB, which is what duemq's own topics take by default. Raises BadConfig.
    """
    return client(kafka) | _PRODUCER
