"""The topics a group needs: those it retries by are made, duemq's has to be there."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.structs import TopicPartition

from duemq.client.consumer.names import dead_letter_topic, retry_topic
from duemq.client.consumer.options import ConsumerOptions
from duemq.model.errors import Rejected, Unavailable

log = logging.getLogger(__name__)

_AS_THE_BROKER_LIKES = -1
_NONE, _UNKNOWN_TOPIC, _EXISTS = 0, 3, 36


async def prepare(group: str, bootstrap: str, options: ConsumerOptions, topics: Iterable[str]) -> int:
    """The partitions of duemq's buffer topic. Idempotent.

    Raises Rejected `unknown_topic` where this Kafka has no duemq, and Unavailable where the topics cannot be made.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, **options.kafka)
    try:
        await admin.start()
        known = await _partitions(admin, [options.buffer_topic, *topics])
        if not (partitions := known[options.buffer_topic]):
            detail = f"there is no topic {options.buffer_topic} at {bootstrap}: duemq is not running on this Kafka"
            raise Rejected("unknown_topic", detail, "bootstrap")
        for topic, count in known.items():
            if not count:
                log.warning(
                    "consumer of group %s: there is no topic %s yet", group, topic, extra={"action": "subscribe"}
                )
        wanted = {retry_topic(group): options.retry_partitions, dead_letter_topic(group): 1}
        made = await admin.create_topics(
            [NewTopic(topic, count, _AS_THE_BROKER_LIKES, replica_assignments={}) for topic, count in wanted.items()]
        )
        for error in made.topic_errors:
            if error[1] not in (_NONE, _EXISTS):
                raise Unavailable(f"topic {error[0]} cannot be made: Kafka's error {error[1]}")
        return partitions
    finally:
        await admin.close()


async def partitions_of(bootstrap: str, options: ConsumerOptions, topics: Iterable[str]) -> set[TopicPartition]:
    """All partitions of these topics. Raises KafkaError."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, **options.kafka)
    try:
        await admin.start()
        known = await _partitions(admin, list(topics))
        return {TopicPartition(topic, number) for topic, count in known.items() for number in range(count)}
    finally:
        await admin.close()


async def _partitions(admin: AIOKafkaAdminClient, topics: list[str]) -> Mapping[str, int]:
    """How many each has; 0 where it does not exist."""
    described: list[dict[str, Any]] = await admin.describe_topics(topics)
    return {each["topic"]: 0 if each["error_code"] == _UNKNOWN_TOPIC else len(each["partitions"]) for each in described}
