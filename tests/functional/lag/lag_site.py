"""Topics, messages and groups for the tests of lag."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from tests.support.patience import SERVERS_S

Headers = Sequence[tuple[str, bytes]]


class LagSite:
    """Everything has a name of its own, because the broker is shared."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin: Any = None
        self.producer: Any = None

    async def start(self) -> None:
        """Only `commit`, `end` and `transactions` work without it."""
        self.admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        self.producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, acks="all")
        await self.admin.start()
        await self.producer.start()

    async def stop(self) -> None:
        await self.producer.stop()
        await self.admin.close()

    @staticmethod
    def group() -> str:
        return f"group-{secrets.token_hex(4)}"

    async def topic(self, partitions: int = 1, name: str | None = None) -> str:
        name = name or f"lag-{secrets.token_hex(4)}"
        answer = await self.admin.create_topics([NewTopic(name, partitions, 1)])
        assert [code for _, code, _ in answer.topic_errors] == [0]
        await self._until(lambda found: found["error_code"] == 0 and len(found["partitions"]) == partitions, name)
        return name

    async def delete(self, topic: str) -> None:
        await self.admin.delete_topics([topic])
        await self._until(lambda found: found["error_code"] == 3, topic)

    async def _until(self, good: Any, topic: str) -> None:
        async with asyncio.timeout(SERVERS_S):
            while not good((await self.admin.describe_topics([topic]))[0]):  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.02)

    async def send(
        self, topic: str, count: int = 1, partition: int = 0, headers: Headers = (), timestamp_ms: int | None = None
    ) -> None:
        await asyncio.gather(
            *[
                await self.producer.send(
                    topic, b"%d" % number, partition=partition, headers=list(headers), timestamp_ms=timestamp_ms
                )
                for number in range(count)
            ]
        )

    @asynccontextmanager
    async def transactions(self) -> AsyncIterator[Any]:
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, transactional_id=f"lag-{secrets.token_hex(4)}")
        await producer.start()
        try:
            yield producer
        finally:
            await producer.stop()

    async def in_transaction(self, topic: str, count: int, *, abort: bool = False, partition: int = 0) -> None:
        """And wait until its marker is there."""
        async with self.transactions() as producer:
            await producer.begin_transaction()
            await asyncio.gather(*[await producer.send(topic, b"t", partition=partition) for _ in range(count)])
            last = await self.end(topic, partition, committed=False)
            await (producer.abort_transaction() if abort else producer.commit_transaction())
            async with asyncio.timeout(SERVERS_S):
                while await self.end(topic, partition) != last + 1:  # noqa: ASYNC110  # nobody tells
                    await asyncio.sleep(0.01)

    async def end(self, topic: str, partition: int = 0, *, committed: bool = True) -> int:
        level = "read_committed" if committed else "read_uncommitted"
        async with self.consumer(isolation_level=level) as consumer:
            where = TopicPartition(topic, partition)
            found: int = (await consumer.end_offsets([where]))[where]
            return found

    @asynccontextmanager
    async def consumer(self, *topics: str, **options: Any) -> AsyncIterator[Any]:
        options = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **options}
        consumer = AIOKafkaConsumer(*topics, bootstrap_servers=self.bootstrap, **options)
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()

    async def commit(self, group: str, places: Mapping[tuple[str, int], int | tuple[int, str]]) -> None:
        """As a consumer with an assignment of its own."""
        offsets = {TopicPartition(*where): place for where, place in places.items()}
        async with self.consumer(group_id=group) as consumer:
            consumer.assign(list(offsets))
            async with asyncio.timeout(SERVERS_S):
                while True:
                    try:
                        await consumer.commit(offsets)
                        return
                    except KafkaError as error:
                        if not error.retriable:
                            raise

    async def cut(self, topic: str, before: int) -> None:
        """As retention does."""
        await self.admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before)})
