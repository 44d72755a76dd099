"""What tests of the consumer share: topics of their own, records in them, and what a group has committed."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.errors import GroupCoordinatorNotAvailableError
from aiokafka.structs import TopicPartition

from duemq.client.consumer.kafka.positions import metadata_of, pull_in, topics_in
from duemq.model.topics.group_topics import retry_topic
from tests.support.patience import SERVERS_S


async def until(condition: Callable[[], object | Awaitable[object]], what: str) -> None:
    """Wait for a condition; it is asked every 20 ms."""
    try:
        async with asyncio.timeout(SERVERS_S):
            while True:
                found = condition()
                if await found if isinstance(found, Awaitable) else found:
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"waited {SERVERS_S} s for this: {what}") from None


@asynccontextmanager
async def admin_of(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def new_topic(bootstrap: str, partitions: int = 1, **settings: str) -> str:
    topic = f"orders-{secrets.token_hex(4)}"
    await make_topic(bootstrap, topic, partitions, settings)
    return topic


async def make_topic(
    bootstrap: str, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None
) -> None:
    async with admin_of(bootstrap) as admin:
        made = await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=dict(settings or {}))])
        assert all(error[1] == 0 for error in made.topic_errors), made.topic_errors


async def add_partitions(bootstrap: str, topic: str, total: int) -> None:
    async with admin_of(bootstrap) as admin:
        await admin.create_partitions({topic: NewPartitions(total)})


async def delete_topic(bootstrap: str, topic: str) -> None:
    """It is gone when it returns."""
    await _delete(bootstrap, lambda one: one == topic)


async def delete_topics_of(bootstrap: str, topic: str, group: str) -> None:
    """The topic, and all whose names have that of the group: its retries and dead letters."""
    await _delete(bootstrap, lambda one: one == topic or group in one)


async def _delete(bootstrap: str, chosen: Callable[[str], bool]) -> None:
    async with admin_of(bootstrap) as admin:
        await admin.delete_topics([one for one in await admin.list_topics() if chosen(one)])

        async def gone() -> bool:
            return not any(map(chosen, await admin.list_topics()))

        await until(gone, "the topics are gone")


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
        async with asyncio.timeout(SERVERS_S):
            while len(found) < count:
                found += [each for some in (await consumer.getmany(timeout_ms=200)).values() for each in some]
        return found


async def committed(bootstrap: str, group: str, topic: str, partition: int = 0) -> tuple[int, str] | None:
    """The offset a group has committed, with how far it had pulled as the metadata tells it."""
    place = await _place(bootstrap, group, TopicPartition(topic, partition))
    if place is None:
        return None
    pull = pull_in(place[1])
    return place[0], place[1] if pull is None else metadata_of(pull)


async def known_to(bootstrap: str, group: str, *topics: str) -> bool:
    """Whether a group has stored that it knows these topics."""
    place = await _place(bootstrap, group, TopicPartition(retry_topic(group), 0))
    return place is not None and topics_in([place[1]], topics) == set(topics)


async def _place(bootstrap: str, group: str, partition: TopicPartition) -> tuple[int, str] | None:
    async with admin_of(bootstrap) as admin:
        try:
            found = (await admin.list_consumer_group_offsets(group)).get(partition)
        except GroupCoordinatorNotAvailableError:  # the first group of a cluster waits until there is one
            return None
    return None if found is None or found.offset < 0 else (found.offset, found.metadata)
