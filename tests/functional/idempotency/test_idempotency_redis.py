"""What is Redis's own: the server forgets by itself, is away, and is shared by clients of all kinds."""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from duemq.client.idempotency.base import Done, Fresh, Running
from duemq.client.idempotency.redis import RedisStore
from duemq.dev.servers.ports import free_port
from duemq.model.errors import BadConfig, Unavailable

pytestmark = pytest.mark.anyio

T0 = 1_800_000_000_000
MINUTE = 60_000


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_url, decode_responses=True)
    yield client
    await client.aclose()


async def test_the_server_forgets_in_time_what_was_begun_and_what_is_done(client: Redis) -> None:
    prefix = secrets.token_hex(4)
    store = RedisStore(client, prefix.encode())
    assert await store.begin(b"k", "a", T0, 5 * MINUTE, 60 * MINUTE) == Fresh()
    assert 64 * MINUTE < await client.pttl(f"{prefix}k") <= 65 * MINUTE
    await store.finish(b"k", "a", b"1", T0, 10 * MINUTE)
    assert 9 * MINUTE < await client.pttl(f"{prefix}k") <= 10 * MINUTE
    await store.release(b"l", "a")
    assert await client.keys(f"{prefix}*") == [f"{prefix}k"]


async def test_two_processes_share_a_store_and_one_that_decodes_answers_may_too(redis_url: str, client: Redis) -> None:
    prefix = secrets.token_bytes(4).hex().encode()
    one, two = await RedisStore.open(redis_url, prefix), RedisStore(client, prefix)
    assert await one.begin(b"k", "a", T0, MINUTE, MINUTE) == Fresh()
    assert await two.begin(b"k", "b", T0, MINUTE, MINUTE) == Running("a", T0, T0 + MINUTE)
    await one.finish(b"k", "a", '"ü"'.encode(), T0, MINUTE)
    assert await two.begin(b"k", "b", T0, MINUTE, MINUTE) == Done('"ü"'.encode())
    await one.close()
    await two.close()
    assert await client.ping(), "a client of the caller stays open"


async def test_a_server_that_restarts_empty_of_scripts_is_no_matter(redis_url: str, client: Redis) -> None:
    store = await RedisStore.open(redis_url, secrets.token_bytes(4))
    await store.begin(b"k", "a", T0, MINUTE, MINUTE)
    await client.script_flush()
    assert await store.finish(b"k", "a", b"1", T0, MINUTE)
    await store.close()


async def test_a_server_that_is_away_is_said_to_be_unavailable() -> None:
    with pytest.raises(Unavailable, match="Redis"):
        await RedisStore.open(f"redis://127.0.0.1:{free_port()}", start_s=0)


async def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(BadConfig, match=r"pip install 'duemq\[redis\]'"):
        await RedisStore.open("redis://127.0.0.1:1")
