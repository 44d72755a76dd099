"""A real server that is killed or falls silent, at each step of the work of a key."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from duemq.client.consumer.retry.policy import Pause
from duemq.client.idempotency.base import Fresh, NothingHappened
from duemq.client.idempotency.once import once
from duemq.client.idempotency.redis import RedisStore
from duemq.model.errors import CorruptStore, Unavailable
from tests.support.consumer.idempotency_world import Mail
from tests.support.patience import SERVERS_S
from tests.support.servers.valkey_node import ValkeyNode

pytestmark = pytest.mark.anyio

T0 = 1_800_000_000_000
MINUTE = 60_000
BRIEF = timedelta(seconds=0.3)


@pytest.fixture
def node(redis_url: str, tmp_path: Path) -> Iterator[ValkeyNode]:
    """`redis_url` marks these tests, and skips them where there is no server."""
    with ValkeyNode(tmp_path) as node:
        yield node


class Away:
    """Two ways to be away, and back."""

    def __init__(self, node: ValkeyNode, silent: bool) -> None:
        self._leave = node.fall_silent if silent else node.kill
        self._come_back = node.go_on if silent else node.start

    async def leave(self) -> None:
        await asyncio.to_thread(self._leave)

    async def come_back(self) -> None:
        await asyncio.to_thread(self._come_back)


@pytest.fixture(params=["killed", "silent"])
def away(request: pytest.FixtureRequest, node: ValkeyNode) -> Away:
    return Away(node, request.param == "silent")


async def until_answered(handle: Callable[[Mail], Awaitable[Any]], or_begun: Counter[str] | None = None) -> Any:
    """As a consumer does it: the message stays in hand. `or_begun`: a pause behind this is raised."""
    async with asyncio.timeout(SERVERS_S):
        while True:
            try:
                return await handle(Mail("a"))
            except Pause:
                if or_begun:
                    raise
                await asyncio.sleep(0.02)


async def test_a_store_that_is_away_at_the_start_is_waited_for(node: ValkeyNode) -> None:
    """A consumer that starts meanwhile ended with an error: found by a round of `tests.chaos.consumer_rounds`."""
    await asyncio.to_thread(node.kill)
    opening = asyncio.create_task(RedisStore.open(node.url))
    done, _ = await asyncio.wait([opening], timeout=0.5)
    assert not done, "it was given up, or found a server that is not there"
    await asyncio.to_thread(node.start)
    store = await opening
    assert await store.begin(b"k", "a", T0, MINUTE, MINUTE) == Fresh()
    await store.close()


@pytest.mark.parametrize("step", ["before", "in the work", "at a harmless failure"])
async def test_work_is_done_once_over_an_outage(node: ValkeyNode, away: Away, step: str) -> None:
    """With `at_most_once`, so that a doubt would show. What a silent server was asked it carries out later."""
    store, effects, attempts = await RedisStore.open(node.url), Counter[str](), Counter[str]()

    async def work(mail: Mail) -> int:
        attempts[mail.id] += 1
        if step != "before" and attempts[mail.id] == 1:
            await away.leave()
            if step == "at a harmless failure":
                raise NothingHappened("the bank is closed")
        effects[mail.id] += 1
        return effects[mail.id]

    def process(**options: Any) -> Any:
        return once(store, scope="s", at_most_once=True, clock=lambda: T0, store_timeout=BRIEF, **options)(work)

    handle = process()
    if step == "before":
        await away.leave()
    else:
        with pytest.raises(NothingHappened if step == "at a harmless failure" else Pause):
            await until_answered(handle, attempts)
    with pytest.raises(Pause):
        await handle(Mail("a"))
    assert effects == ({"a": 1} if step == "in the work" else {})
    await away.come_back()
    assert await until_answered(handle) == 1
    assert await until_answered(process()) == 1, "the store knows"
    assert effects == {"a": 1}
    await store.close()


async def test_a_consumers_worth_of_handlers_goes_on_when_the_server_does(node: ValkeyNode, away: Away) -> None:
    """More at once than there are connections."""
    store, effects, paused = await RedisStore.open(node.url), Counter[str](), asyncio.Event()

    @once(store, scope="s", store_timeout=BRIEF)
    async def handle(mail: Mail) -> None:
        effects[mail.id] += 1

    async def one(number: int) -> None:
        async with asyncio.timeout(SERVERS_S):
            while True:
                try:
                    await handle(Mail(f"{number}"))
                    return
                except Pause:
                    paused.set()
                    await asyncio.sleep(0.02)

    await away.leave()
    waiting = asyncio.gather(*(one(number) for number in range(100)))
    await paused.wait()
    assert not effects
    await away.come_back()
    await waiting
    assert effects == {f"{number}": 1 for number in range(100)}
    await store.close()


async def test_closing_does_not_wait_for_a_silent_server(node: ValkeyNode) -> None:
    store = await RedisStore.open(f"{node.url}?socket_timeout=3600")
    assert await store.begin(b"k", "a", T0, MINUTE, MINUTE) == Fresh()
    node.fall_silent()
    waiting = asyncio.ensure_future(store.finish(b"k", "a", b"1", T0, MINUTE))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(Unavailable):
        await waiting
    node.go_on()


async def test_a_key_that_is_something_else_stops_nobody_else(redis_url: str) -> None:
    prefix = b"something-else:"
    store, client = await RedisStore.open(redis_url, prefix), Redis.from_url(redis_url)
    await client.set(prefix + b"text", b"1")
    await client.hset(prefix + b"hash", mapping={"owner": b"a"})
    for key in (b"text", b"hash"):
        with pytest.raises(CorruptStore, match="something else"):
            await store.begin(key, "b", T0, MINUTE, MINUTE)
    assert await store.begin(b"k", "b", T0, MINUTE, MINUTE) == Fresh()
    await client.aclose()
    await store.close()
