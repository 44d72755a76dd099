"""Kafka forgets the offsets of a group that has had no member for long; a group can be kept, on a real Kafka."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from duemq.client.consumer.kafka.log import KafkaLog
from duemq.client.consumer.options import ConsumerOptions
from duemq.dev.kafka.kafka import KafkaServers
from tests.support.consumer.consumer_site import committed, new_group, new_topic, send
from tests.support.servers.real_servers import need

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SOON = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}


async def store(bootstrap: str, group: str, topic: str) -> None:
    """Be the group's only member, and leave."""
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest"
    ) as consumer:
        await consumer.getone()
        await consumer.commit({TopicPartition(topic, 0): 7})


async def test_a_group_without_members_is_kept_where_it_is_renewed(tmp_path: Path) -> None:
    with need(lambda: KafkaServers(tmp_path / "kafka", extra=SOON)) as kafka:
        kafka.start()
        bootstrap, kept, forgotten = kafka.bootstrap, new_group(), new_group()
        topic = await new_topic(bootstrap, 2)
        await send(bootstrap, topic, [b"x"] * 8)
        await asyncio.gather(*(store(bootstrap, group, topic) for group in (kept, forgotten)))
        end = time.monotonic() + 130
        while time.monotonic() < end:
            await KafkaLog(kept, bootstrap, ConsumerOptions()).renew([topic])
            await asyncio.sleep(15)
        assert await committed(bootstrap, forgotten, topic) is None
        assert await committed(bootstrap, kept, topic) == (7, "")
