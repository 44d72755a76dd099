"""Topics that accept no messages, each for a different reason, and a sender to them."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from duemq.bench.base.workers import WorkerLink
from duemq.bench.system.system import SiteError
from duemq.cluster.topics.internal_topics import BUFFER

_PER_S = 20
_DELAY_MS = 300

KINDS: Final[Mapping[str, str]] = {
    "compacted": "compacted, messages without key",
    "colliding": "its name collides with another's",
    "deleted": "deleted again and again",
    "leaderless": "its only broker is dead",
    "min-isr": "too few replicas in sync",
}
OF_THREE: Final = ("leaderless", "min-isr")
"""The kinds that need three brokers; the third broker must be dead."""
MADE_AGAIN: Final = "deleted"
"""The kind that duemq recreates, so that it has no lasting effect to measure."""


def topic_of(kind: str, prefix: str) -> str:
    """The bad topic's name. For the colliding kind, the existing topic has underscores instead of the dots."""
    return f"{prefix}.{kind}.bad"


async def make(bootstrap: str, kind: str, topic: str) -> None:
    """Create the bad topic, or the topic that it collides with. Raises SiteError."""
    new: dict[str, NewTopic] = {
        "compacted": NewTopic(topic, 1, 1, topic_configs={"cleanup.policy": "compact"}),
        "colliding": NewTopic(topic.replace(".", "_"), 1, 1),
        "deleted": NewTopic(topic, 1, 1),
        "leaderless": NewTopic(topic, -1, -1, {0: [3]}, {"min.insync.replicas": "1"}),
        "min-isr": NewTopic(topic, -1, -1, {0: [2, 3]}, {"min.insync.replicas": "2"}),
    }
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        answer = await admin.create_topics([new[kind]])
        for _, code, *reason in answer.topic_errors:
            if code:
                raise SiteError(f"Kafka did not make topic {topic}: error {code} {reason}")
    finally:
        await admin.close()


async def send_to(link: WorkerLink, bootstrap: str, kind: str, topic: str, shards: int) -> int:
    """Send plain records for the bad topic, 20 a second to each shard in turn, until stopped. Returns the number of
    records."""
    producer: Any = AIOKafkaProducer(bootstrap_servers=bootstrap)
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await producer.start()
    await admin.start()
    sent = 0
    headers = [("duemq-topic", topic.encode()), ("duemq-delay", b"%d" % _DELAY_MS)]
    try:
        while not link.stopped.is_set():
            await producer.send_and_wait(BUFFER, b"bad %d" % sent, partition=sent % shards, headers=headers)
            sent += 1
            if kind == MADE_AGAIN and sent % (5 * _PER_S) == 0:
                await admin.delete_topics([topic])
            link.progress(sent)
            await asyncio.sleep(1 / _PER_S)
    finally:
        await producer.stop()
        await admin.close()
    return sent
