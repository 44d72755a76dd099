"""A Redis that takes connections and never answers holds nobody, whatever the client is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from redis.asyncio import Redis

from duemq.client.consumer.retry.policy import Pause
from duemq.client.idempotency.once import once
from duemq.client.idempotency.redis import RedisStore
from duemq.model.errors import Unavailable
from tests.support.consumer.idempotency_world import MINUTE, T0, Mail

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while await reader.read(4_096):
            pass
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    for each in writers:
        each.close()
        await each.wait_closed()


async def test_opening_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.client.idempotency.redis._SOCKET_S", 0.05)
    async with silent_server() as url:
        with pytest.raises(Unavailable, match="Redis"):
            await RedisStore.open(url, start_s=0)


@pytest.mark.parametrize(
    ("query", "waits"), [("", (5.0, 5.0)), ("?socket_timeout=0.5&socket_connect_timeout=2", (0.5, 2.0))]
)
async def test_each_answer_is_waited_for_so_long(
    monkeypatch: pytest.MonkeyPatch, query: str, waits: tuple[float, float]
) -> None:
    """redis-py before 8 waits for ever, where nothing is said."""

    async def ping(self: Redis) -> bool:
        return True

    monkeypatch.setattr(Redis, "ping", ping)
    store = await RedisStore.open(f"redis://127.0.0.1:1{query}")
    options = store._client.connection_pool.connection_kwargs
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == waits
    await store.close()


async def test_a_client_without_time_outs_holds_no_handler() -> None:
    async with silent_server() as url:
        client = Redis.from_url(url, socket_timeout=None, socket_connect_timeout=None)
        store = RedisStore(client)

        @once(store, scope="tests", store_timeout=timedelta(seconds=0.1))
        async def handle(mail: Mail) -> None:
            raise AssertionError("it was never begun")

        with pytest.raises(Pause, match=r"has not answered within 0\.1 s"):
            await handle(Mail("a"))
        await store.close()
        await client.aclose()


async def test_closing_ends_calls_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ping(self: Redis) -> bool:
        return True

    monkeypatch.setattr(Redis, "ping", ping)
    monkeypatch.setattr("duemq.client.idempotency.redis._CALL_S", 3_600.0)
    async with silent_server() as url:
        store = await RedisStore.open(f"{url}?socket_timeout=3600")
        waiting = [asyncio.ensure_future(store.begin(b"%d" % n, "a", T0, MINUTE, MINUTE)) for n in range(40)]
        await asyncio.sleep(0)
        await store.close()
        told = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
        assert all(isinstance(each, Unavailable) for each in told)
