"""Groups of consumers on a real Kafka: who gets what, and what all are told of a member that differs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack

import pytest
from aiokafka import AIOKafkaConsumer

from duemq.bus.kafka.bus import KafkaBus
from duemq.client.consumer.base import Mismatch
from duemq.client.consumer.kafka.assignors import assignor
from duemq.dev.kafka.kafka import KafkaServers
from duemq.election.allocation import StrategyName
from tests.functional.kafka.kafka_bus import new_topic
from tests.support.patience import SERVERS_S

pytestmark = pytest.mark.anyio


class Group:
    """Consumers of one group, and what each was told last."""

    def __init__(self, bootstrap: str, strategy: StrategyName) -> None:
        self._bootstrap, self._strategy = bootstrap, strategy
        self._name, self._changed = secrets.token_hex(4), asyncio.Event()
        self.members: dict[str, AIOKafkaConsumer] = {}
        self.told: dict[str, Sequence[Mismatch]] = {}

    async def join(self, name: str, tags: str, *topics: str, rack: str = "") -> None:
        def tell(found: Sequence[Mismatch]) -> None:
            self.told[name] = found
            self._changed.set()

        consumer = AIOKafkaConsumer(
            *topics,
            bootstrap_servers=self._bootstrap,
            client_id=name,
            group_id=self._name,
            heartbeat_interval_ms=100,
            retry_backoff_ms=20,
            partition_assignment_strategy=(assignor(self._strategy, rack, dict.fromkeys(topics, tags), tell),),
        )
        self.members[name] = consumer
        await consumer.start()

    async def leave(self, name: str) -> None:
        self.told.pop(name)
        await self.members.pop(name).stop()

    def owners(self) -> list[tuple[str, int, str]]:
        return sorted(
            (each.topic, each.partition, name) for name, member in self.members.items() for each in member.assignment()
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SERVERS_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def close(self) -> None:
        for name in list(self.members):
            await self.members.pop(name).stop()


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def test_all_members_hear_who_has_other_tags_and_that_it_has_left(
    kafka: KafkaServers, bus: KafkaBus, stack: AsyncExitStack
) -> None:
    topic = await new_topic(bus, 8)
    group = Group(kafka.bootstrap, StrategyName.AVERAGE)
    stack.push_async_callback(group.close)
    for name, tags in (("one", "paid"), ("two", "paid"), ("odd", "paid || new")):
        await group.join(name, tags, topic)

    def heard() -> bool:
        return len(group.told) == 3 and all(len(found) == 1 for found in group.told.values())

    await group.until(heard)
    found = group.told["one"][0]
    assert found.member.startswith("odd-"), "Kafka makes a member's id of its client id"
    assert (found.topic, found.expected_tags, found.found_tags) == (topic, "paid", "new || paid")
    assert set(group.told) == {"one", "two", "odd"} and all(its == (found,) for its in group.told.values())
    owners = group.owners()
    assert [place[:2] for place in owners] == [(topic, number) for number in range(8)]
    assert sorted(sum(name == each[2] for each in owners) for name in group.members) == [2, 3, 3]

    await group.leave("odd")
    await group.until(lambda: all(not its for its in group.told.values()))
    assert [(number, name) for _, number, name in group.owners()] == [
        (number, "one" if number < 4 else "two") for number in range(8)
    ]


@pytest.mark.parametrize("strategy", StrategyName)
async def test_a_member_with_other_topics_gets_only_those(
    kafka: KafkaServers, bus: KafkaBus, stack: AsyncExitStack, strategy: StrategyName
) -> None:
    common, extra = await new_topic(bus, 4), await new_topic(bus, 3)
    group = Group(kafka.bootstrap, strategy)
    stack.push_async_callback(group.close)
    await group.join("a", "*", common, rack="r1")
    await group.join("b", "*", common, extra, rack="r2")
    await group.until(lambda: len(group.told) == 2 and all(group.told.values()))
    owners = group.owners()
    assert [place[:2] for place in owners] == sorted([(common, n) for n in range(4)] + [(extra, n) for n in range(3)])
    assert {name for topic, _, name in owners if topic == extra} == {"b"}
    assert sorted(name for topic, _, name in owners if topic == common) == ["a", "a", "b", "b"]
    assert group.told["a"] == group.told["b"]
