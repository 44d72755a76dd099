"""What tests of the consumer share: topics of their own, records in them, and what a group has committed."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.structs import TopicPartition

WITHIN_S = 300.0


async def until(condition: Callable[[], object | Awaitable[object]], what: str) -> None:
    """Wait for a condition; it is asked every 20 ms."""
    try:
        async with asyncio.timeout(WITHIN_S):
            while True:
                found = condition()
                if await found if isinstance(found, Awaitable) else found:
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"waited {WITHIN_S} s for this: {what}") from None


async def new_topic(bootstrap: str, partitions: int = 1) -> str:
    topic = f"orders-{secrets.token_hex(4)}"
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        made = await admin.create_topics([NewTopic(topic, partitions, 1)])
        assert all(error[1] == 0 for error in made.topic_errors)
    finally:
        await admin.close()
    return topic


def new_group() -> str:
    return f"group-{secrets.token_hex(4)}"


async def send(
    bootstrap: str,
    topic: str,
    values: Iterable[bytes],
    *,
    key: bytes | None = None,
    headers: Iterable[tuple[str, bytes]] = (),
    partition: int | None = None,
) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        futures = [
            await producer.send(topic, value, key=key, headers=list(headers), partition=partition) for value in values
        ]
        await asyncio.gather(*futures)


async def read_all(bootstrap: str, topic: str, count: int) -> list[Any]:
    """The first `count` records of a topic."""
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        found: list[Any] = []
        async with asyncio.timeout(WITHIN_S):
            while len(found) < count:
                found += [each for some in (await consumer.getmany(timeout_ms=200)).values() for each in some]
        return found


async def committed(bootstrap: str, group: str, topic: str, partition: int = 0) -> tuple[int, str] | None:
    """The offset a group has committed, with its metadata."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        found = await admin.list_consumer_group_offsets(group)
    finally:
        await admin.close()
    place = found.get(TopicPartition(topic, partition))
    return None if place is None or place.offset < 0 else (place.offset, place.metadata)
