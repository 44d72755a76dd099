"""How many shards a cluster has: read, never guessed. With another number every name would go to a wrong partition."""

from __future__ import annotations

from duemq.pipeline.logs.kafka import Kafka, options_of
from duemq.pipeline.logs.logs import BUFFER
from duemq.pipeline.logs.ranges import Logs
from duemq.pipeline.logs.server import Server


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
