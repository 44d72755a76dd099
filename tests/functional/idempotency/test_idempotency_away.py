"""The store of idempotency keys goes away in the middle of a consumer's work, on a real Kafka: all is done once, and no
retry is used up. Needs a consumer that heeds `Pause`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from duemq.client.consumer import Consumer, ConsumerOptions, Delays, Message
from duemq.client.consumer.retry.policy import Pause
from duemq.client.idempotency import MemoryStore, RedisStore, Store, once
from tests.support.consumer.consumer_site import committed, new_group, new_topic, send, until
from tests.support.consumer.idempotency_world import FaultyStore
from tests.support.servers.valkey_node import ValkeyNode

pytestmark = pytest.mark.anyio

MESSAGES, BEFORE = 300, 50
OPTIONS = ConsumerOptions(start="first", concurrency=16, stop_s=10, retry=Delays([]))  # no retry: a dead letter at once
BRIEF = timedelta(seconds=0.5)


class Site:
    """A handler that pays each message at most once, and a store that leaves when `BEFORE` are paid."""

    def __init__(self, store: Store, topic: str, bootstrap: str, leave: Any) -> None:
        self.topic, self.group, self.bootstrap = topic, new_group(), bootstrap
        self.effects, self.attempts = Counter[str](), set[int]()
        self.paused, self._left = asyncio.Event(), False
        leaving = False

        @once(store, scope=self.group, at_most_once=True, store_timeout=BRIEF)
        async def pay(message: Message) -> str:
            nonlocal leaving
            await asyncio.sleep(0)
            self.effects[message.text] += 1
            if not leaving and len(self.effects) == BEFORE:
                leaving = True
                await asyncio.to_thread(leave)
                self._left = True
            return message.text

        async def handle(message: Message) -> None:
            self.attempts.add(message.attempt)
            try:
                await pay(message)
            except Pause:
                if self._left:
                    self.paused.set()
                raise

        self._handle = handle

    def member(self) -> Consumer:
        consumer = Consumer(self.group, self.bootstrap, OPTIONS)
        consumer.add(self.topic, self._handle)
        return consumer

    async def all_is_done_once(self, consumer: Consumer) -> None:
        await until(lambda: len(self.effects) == MESSAGES and not consumer.in_hand, "all messages")
        assert self.effects == {f"{number}": 1 for number in range(MESSAGES)}
        assert self.attempts == {1}
        for outcome in ("retried", "dead"):
            assert consumer.counts[self.topic, outcome] == 0


async def site(bootstrap: str, store: Store, leave: Any) -> Site:
    topic = await new_topic(bootstrap)
    await send(bootstrap, topic, [b"%d" % number for number in range(MESSAGES)])
    return Site(store, topic, bootstrap, leave)


@pytest.fixture
def node(redis_url: str, tmp_path: Path) -> Iterator[ValkeyNode]:
    """`redis_url` marks these tests, and skips them where there is no server."""
    with ValkeyNode(tmp_path) as node:
        yield node


@pytest.mark.parametrize("silent", [False, True], ids=["killed", "silent"])
async def test_a_server_is_away_for_a_while(kafka_with_duemq: str, node: ValkeyNode, silent: bool) -> None:
    store = await RedisStore.open(node.url)
    here = await site(kafka_with_duemq, store, node.fall_silent if silent else node.kill)
    async with here.member() as consumer:
        await here.paused.wait()
        await asyncio.to_thread(node.go_on if silent else node.start)
        await here.all_is_done_once(consumer)
    place = await committed(kafka_with_duemq, here.group, here.topic)
    assert place is not None and place[0] == MESSAGES
    await store.close()


@pytest.mark.parametrize("fault", ["away", "lost"])
@pytest.mark.parametrize("call", ["begin", "finish"])
async def test_answers_fail_for_a_while(kafka_with_duemq: str, call: str, fault: str) -> None:
    """`lost`: they took effect."""
    store = FaultyStore(MemoryStore())
    here = await site(kafka_with_duemq, store, lambda: setattr(store, fault, {call}))
    async with here.member() as consumer:
        await here.paused.wait()
        setattr(store, fault, set())
        await here.all_is_done_once(consumer)


async def test_a_member_that_stops_meanwhile_leaves_the_rest_to_the_next(kafka_with_duemq: str) -> None:
    """The store does not know of the work that was done last; the process of both members does."""
    store = FaultyStore(MemoryStore())
    here = await site(kafka_with_duemq, store, lambda: setattr(store, "away", {"begin", "finish", "release"}))
    first = here.member()
    await first.start()
    await here.paused.wait()
    await first.stop()
    assert first.counts[here.topic, "dead"] == 0 and len(here.effects) < MESSAGES
    store.away = set()
    async with here.member() as second:
        await here.all_is_done_once(second)
