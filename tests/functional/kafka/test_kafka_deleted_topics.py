"""Brokers that make topics by themselves, which is their default: what its owner deletes stays deleted."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaProducer

from duemq.bus.base import WriteRefused
from duemq.bus.kafka.bus import KafkaBus
from duemq.dev.kafka.kafka import KafkaServers
from tests.chaos.topics import administration
from tests.functional.kafka.kafka_bus import frames, new_topic, own_log
from tests.support.patience import SERVERS_S
from tests.support.servers.aiokafka_parts import followed_topics

pytestmark = pytest.mark.anyio


async def names(kafka: KafkaServers) -> set[str]:
    async with administration(kafka.bootstrap) as admin:
        return set(await admin.list_topics())


async def test_a_deleted_topic_is_not_made_again(bus: KafkaBus, kafka: KafkaServers) -> None:
    """aiokafka asks again every minute, and after each error, for all names that a client has met."""
    ledger, topic, kept = await own_log(bus), await new_topic(bus), await new_topic(bus)
    committer, idle = await bus.committer("shard-0"), await bus.committer("shard-1")
    await idle.commit({(topic, 0): frames("message")})
    for name in (topic, kept):
        await committer.commit({(ledger, 0): frames("entry"), (name, 0): frames("message")})
        await bus.append({(name, 0): frames("at once")})
        assert await bus.end_offset(name, 0) > 0
    async with administration(kafka.bootstrap) as admin:
        await admin.delete_topics([topic])
    with pytest.raises(WriteRefused):
        async with asyncio.timeout(SERVERS_S):
            while True:
                committer = await bus.committer("shard-0")
                await committer.commit({(ledger, 0): frames("entry"), (topic, 0): frames("message")})
    clients = [bus.wire.client, idle.producer.client, bus.to_topics.producer.client]
    assert all(await asyncio.gather(*(client.force_metadata_update() for client in clients)))
    # Any broker that was asked to make it has done so by the time it makes another one that is asked for later.
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as foreign:
        await foreign.send_and_wait(f"{topic}-of-others", b"made by asking")
    there = await names(kafka)
    assert f"{topic}-of-others" in there and kept in there
    assert topic not in there


async def test_a_client_forgets_the_names_of_topics_that_are_gone(bus: KafkaBus, kafka: KafkaServers) -> None:
    topic = await new_topic(bus)
    assert await bus.end_offset(topic, 0) == 0
    assert topic in followed_topics(bus.wire.client)
    async with administration(kafka.bootstrap) as admin:
        await admin.delete_topics([topic])
    async with asyncio.timeout(SERVERS_S):
        while await bus.topic(topic) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert topic not in followed_topics(bus.wire.client)
