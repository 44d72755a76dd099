"""The outlet of Redis on real servers: what is added, what is refused, and what a kill leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from duemq.client.consumer.message import Message
from duemq.relay.base import Reply, Result
from duemq.relay.redis.outlet import RedisOutlet
from tests.support.destinations.redis_nodes import RedisNode
from tests.support.outlets.redis_site import read_stream, redis_outlet
from tests.support.outlets.site import out_message
from tests.support.patience import SERVERS_S
from tests.support.servers.real_servers import need

pytestmark = [
    pytest.mark.anyio, pytest.mark.servers, pytest.mark.smoke, pytest.mark.xdist_group("destinations"),
]  # fmt: skip


@asynccontextmanager
async def outlet_to(url: str, credentials: dict[str, str] | None = None, **options: Any) -> AsyncIterator[RedisOutlet]:
    outlet = redis_outlet(url, credentials, **options)
    try:
        yield outlet
    finally:
        await outlet.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SERVERS_S):
        while not condition():  # noqa: ASYNC110  # a server of another process
            await asyncio.sleep(0.02)


def elements(node: RedisNode, name: str) -> list[bytes]:
    return [each.body for each in node.dump(name)]


async def test_a_list_has_envelopes_or_payloads_each_once(redis_node: RedisNode) -> None:
    message = out_message(1, payload=b"\xff\0", key=b"k", headers=[("a", b"1"), ("a", "ü".encode()), ("raw", b"\xfe")])
    async with outlet_to(redis_node.url, kind="list", name="list-json") as outlet:
        assert [(await outlet.send(message)).status for _ in range(2)] == ["ok", "duplicate"]
    (element,) = elements(redis_node, "list-json")
    assert json.loads(element) == {
        "id": message.id, "due": 1_795_000_000_000, "key": "k", "payload": {"base64": "/wA="},
        "headers": [["a", "1"], ["a", "ü"], ["raw", {"base64": "/g=="}]],
    }  # fmt: skip
    async with outlet_to(redis_node.url, kind="list", name="list-none", envelope="none") as outlet:
        assert [(await outlet.send(message)).status for _ in range(2)] == ["ok", "duplicate"]
    assert elements(redis_node, "list-none") == [b"\xff\0"]


async def test_a_list_takes_no_more_than_its_length(redis_node: RedisNode) -> None:
    for window in ("1h", "0ms"):
        name = f"bounded-{window}"
        options: dict[str, Any] = {"kind": "list", "name": name, "envelope": "none", "max_length": 2}
        async with outlet_to(redis_node.url, **options, dedup_window=window) as outlet:
            replies = [await outlet.send(out_message(number, payload=b"%d" % number)) for number in range(3)]
            assert [reply.result for reply in replies] == [Result.ACCEPTED, Result.ACCEPTED, Result.FAILED]
            assert replies[2].status == "FULL" and replies[2].overloaded
            redis_node.ask("LPOP", name)
            assert (await outlet.send(out_message(2, payload=b"2"))).status == "ok"
        assert elements(redis_node, name) == [b"1", b"2"]


async def test_a_stream_drops_its_oldest(redis_node: RedisNode) -> None:
    async with outlet_to(redis_node.url, name="short", max_length=100) as outlet:
        for start in range(0, 1_000, 500):
            await asyncio.gather(*(outlet.send(out_message(start + number)) for number in range(500)))
    ids = [each.id for each in read_stream(redis_node, "short")]
    assert 100 <= len(ids) < 400  # whole nodes of 100 entries go
    assert ids[-1] == out_message(999).id


async def test_a_channel_has_listeners_or_not(redis_node: RedisNode) -> None:
    message = out_message(1, key=b"k")
    options: dict[str, Any] = {"kind": "pubsub", "name": "ch.{{ topic }}", "require_receiver": True}
    async with outlet_to(redis_node.url, **options) as outlet, Redis.from_url(redis_node.url) as client:
        assert (await outlet.send(message))[:2] == (Result.FAILED, "no_receiver")
        async with client.pubsub() as subscriber:
            await subscriber.subscribe("ch.orders")
            assert (await subscriber.get_message(timeout=10))["type"] == "subscribe"
            assert (await outlet.send(message)).result is Result.ACCEPTED
            heard = await subscriber.get_message(timeout=10)
        assert json.loads(heard["data"])["key"] == "k"
    async with outlet_to(redis_node.url, kind="pubsub", name="nobody") as outlet:
        assert (await outlet.send(message)).result is Result.ACCEPTED


async def test_after_the_window_a_repeat_is_added(redis_node: RedisNode) -> None:
    async with outlet_to(redis_node.url, name="window", dedup_window="300ms") as outlet:
        assert [(await outlet.send(out_message(1))).status for _ in range(2)] == ["ok", "duplicate"]
        await until(lambda: not int(redis_node.ask("EXISTS", f"duemq:{{window}}:{out_message(1).identity}")))
        assert (await outlet.send(out_message(1))).status == "ok"
    assert len(read_stream(redis_node, "window")) == 2
    async with outlet_to(redis_node.url, name="no-window", dedup_window=0) as outlet:
        assert [(await outlet.send(out_message(1))).status for _ in range(2)] == ["ok", "ok"]


async def test_a_repeat_begins_the_window_anew(redis_node: RedisNode) -> None:
    marker = f"duemq:{{anew}}:{out_message(1).identity}"
    async with outlet_to(redis_node.url, name="anew", dedup_window="1h") as outlet:
        await outlet.send(out_message(1))
        redis_node.ask("PEXPIRE", marker, "60000")
        assert (await outlet.send(out_message(1))).status == "duplicate"
    assert int(redis_node.ask("PTTL", marker)) > 3_000_000


@pytest.mark.parametrize("kind", ["stream", "list"])
async def test_what_is_refused_is_added_later(own_redis: RedisNode, kind: str) -> None:
    async with outlet_to(own_redis.url, kind=kind, name="later") as outlet:
        own_redis.ask("SET", "later", "text")
        assert (await outlet.send(out_message(1)))[:2] == (Result.FAILED, "WRONGTYPE")
        own_redis.ask("DEL", "later")
        await until(lambda: not int(own_redis.ask("DBSIZE")))
        own_redis.ask("CONFIG", "SET", "maxmemory", "1")
        reply = await outlet.send(out_message(1))
        assert reply[:2] == (Result.AWAY, "OOM")
        own_redis.ask("CONFIG", "SET", "maxmemory", "0")
        own_redis.ask("REPLICAOF", "127.0.0.1", "1")
        assert (await outlet.send(out_message(1)))[:2] == (Result.AWAY, "READONLY")
        own_redis.ask("REPLICAOF", "NO", "ONE")
        assert (await outlet.send(out_message(1))).status == "ok"
    assert len(own_redis.dump("later")) == 1


@pytest.mark.parametrize("kind", ["stream", "list"])
async def test_what_the_server_cannot_add_is_never_said_to_be_there(redis_node: RedisNode, kind: str) -> None:
    many = out_message(1, headers=[("a", b"1")] * 5_000)  # more words than Lua hands to a command
    async with outlet_to(redis_node.url, kind=kind, name=f"many-{kind}") as outlet:
        results = {(await outlet.send(many)).result for _ in range(2)}
    assert results == ({Result.FAILED} if kind == "stream" else {Result.ACCEPTED})
    assert redis_node.ask("EXISTS", f"many-{kind}").strip() == ("0" if kind == "stream" else "1")


async def test_users_and_passwords(own_redis: RedisNode) -> None:
    own_redis.ask("ACL", "SETUSER", "relay", "on", ">secret", "~*", "+evalsha", "+eval", "+set")
    relay = {"username": "relay", "password": "secret"}
    async with outlet_to(own_redis.url, {"username": "relay", "password": "guess"}, name="users") as outlet:
        reply = await outlet.send(out_message(1))
        assert reply[:2] == (Result.AWAY, "WRONGPASS") and "guess" not in reply.detail
    async with outlet_to(own_redis.url, relay, name="users") as outlet:
        assert (await outlet.send(out_message(1)))[:2] == (Result.AWAY, "NOPERM")
        own_redis.ask("ACL", "SETUSER", "relay", "+xadd")
        assert (await outlet.send(out_message(1))).status == "ok"
    assert len(read_stream(own_redis, "users")) == 1
    own_redis.ask("CONFIG", "SET", "requirepass", "secret")
    async with outlet_to(own_redis.url, name="users") as outlet:
        assert (await outlet.send(out_message(2)))[:2] == (Result.AWAY, "NOAUTH")
        replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(2, 50)))
        assert {reply[:2] for reply in replies} == {(Result.AWAY, "NOAUTH")}
    async with outlet_to(own_redis.url, {"password": "secret"}, name="users") as outlet:
        assert (await outlet.send(out_message(2))).status == "ok"


async def test_a_script_that_was_forgotten_is_given_again(redis_node: RedisNode) -> None:
    async with outlet_to(redis_node.url, name="script") as outlet:
        assert (await outlet.send(out_message(1))).status == "ok"
        redis_node.ask("SCRIPT", "FLUSH")
        replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(100)))
    assert [reply.status for reply in replies].count("duplicate") == 1
    assert len(read_stream(redis_node, "script")) == 100


async def test_tls_with_an_authority_and_a_certificate_of_ones_own(own_redis: RedisNode) -> None:
    ca, cert, key = ((own_redis.ca.with_name(name)).read_text() for name in ("ca.pem", "node.pem", "node.key"))
    async with outlet_to(own_redis.tls_url, {"ca": ca}, name="tls") as outlet:
        assert (await outlet.send(out_message(1))).status == "ok"
    async with outlet_to(own_redis.tls_url, name="tls") as outlet:
        reply = await outlet.send(out_message(2))
        assert reply[:2] == (Result.AWAY, "tls") and "certificate verify failed" in reply.detail
    own_redis.ask("CONFIG", "SET", "tls-auth-clients", "yes")
    async with outlet_to(own_redis.tls_url, {"ca": ca}, name="tls") as outlet:
        assert (await outlet.send(out_message(2))).result is Result.AWAY
    async with outlet_to(own_redis.tls_url, {"ca": ca, "cert": cert, "key": key}, name="tls") as outlet:
        assert (await outlet.send(out_message(2))).status == "ok"
    async with outlet_to(own_redis.tls_url, {"ca": ca, "cert": cert, "key": "none"}, name="tls") as outlet:
        reply = await outlet.send(out_message(3))
        assert reply[:2] == (Result.AWAY, "tls") and "credentials.key" in reply.detail


async def test_a_database_of_its_own(redis_node: RedisNode) -> None:
    async with outlet_to(f"{redis_node.url}/3", name="database") as outlet:
        assert (await outlet.send(out_message(1))).status == "ok"
    assert redis_node.ask("EXISTS", "database").strip() == "0"
    assert redis_node.ask("-n", "3", "XLEN", "database").strip() == "1"


async def test_on_disk_before_it_is_accepted(tmp_path: Path) -> None:
    with need(lambda: RedisNode(tmp_path, make="valkey", fsync="everysec")) as node:
        async with outlet_to(node.url, name="disk", fsync=True) as outlet:
            replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(100)))
            assert {reply.status for reply in replies} == {"ok"}
            node.restart()
        assert len(read_stream(node, "disk")) == 100
        async with outlet_to(node.url, name="replicas", timeout=3_000, replicas=1) as outlet:
            reply = await outlet.send(out_message(1))
            assert reply == Reply(Result.AWAY, "not_durable", "on 0 of 1 replicas")
        node.ask("CONFIG", "SET", "appendonly", "no")
        async with outlet_to(node.url, name="disk", fsync=True) as outlet:
            reply = await outlet.send(out_message(100))
            assert reply.result is Result.AWAY and "appendonly" in reply.detail


async def test_a_kill_in_the_middle_loses_none_and_adds_none_twice(own_redis: RedisNode) -> None:
    messages = [out_message(number, payload=b"%d" % number) for number in range(10_000)]
    accepted = 0

    async def hand_on(part: list[Message]) -> None:
        nonlocal accepted
        for message in part:
            while (await outlet.send(message)).result is not Result.ACCEPTED:  # noqa: ASYNC110  # it comes back
                await asyncio.sleep(0.05)
            accepted += 1

    async with outlet_to(own_redis.url, name="kill") as outlet:
        handing = asyncio.gather(*(hand_on(messages[start::200]) for start in range(200)))
        for killed_at in (2_500, 6_000):
            await until(lambda reached=killed_at: accepted >= reached)  # type: ignore[misc]
            assert accepted < 9_900
            await asyncio.to_thread(own_redis.restart)
        await handing
    arrived = read_stream(own_redis, "kill")
    assert sorted(each.id for each in arrived) == sorted(message.id for message in messages)


async def test_a_server_that_is_silent_is_away(own_redis: RedisNode) -> None:
    async with outlet_to(own_redis.url, name="silent", timeout=300) as outlet:
        assert (await outlet.send(out_message(1))).status == "ok"
        own_redis.process.pause()
        reply = await outlet.send(out_message(2))
        assert reply[:2] == (Result.AWAY, "timeout")
        own_redis.process.resume()
        await until_accepted(outlet, out_message(2))
    assert len(read_stream(own_redis, "silent")) == 2


async def until_accepted(outlet: RedisOutlet, message: Message) -> None:
    async with asyncio.timeout(SERVERS_S):
        while (await outlet.send(message)).result is not Result.ACCEPTED:  # noqa: ASYNC110  # it comes back
            await asyncio.sleep(0.05)
