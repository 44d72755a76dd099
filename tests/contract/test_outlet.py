"""What every outlet promises; see `relay/base.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from duemq.relay.base import Outlet, Result
from tests.support.outlets.http_site import HttpSite
from tests.support.outlets.nats_site import NatsCoreSite, NatsSite
from tests.support.outlets.rabbitmq_site import RabbitMQSite
from tests.support.outlets.redis_site import RedisSite
from tests.support.outlets.site import MemorySite, OutletSite, out_message
from tests.support.patience import SERVERS_S

pytestmark = pytest.mark.anyio

BODIES = [b"text", b"", bytes(range(256)), "ümläut \u2028".encode(), b"x" * 100_000]

ON_SERVERS = ("nats", "nats-core", "rabbitmq", "rabbitmq-stream", "redis_node", "redis_cluster", "rocketmq")
_MARKS = [pytest.mark.servers, pytest.mark.smoke, pytest.mark.xdist_group("destinations")]


@pytest.fixture(params=["memory", "http", *(pytest.param(name, marks=_MARKS) for name in ON_SERVERS)])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[OutletSite]:
    match request.param:
        case "memory":
            yield MemorySite()
        case "http":
            endpoint = HttpSite()
            await endpoint.start()
            yield endpoint
            await endpoint.stop()
        case "nats":
            async with NatsSite(request.getfixturevalue("own_nats")) as nats:
                yield nats
        case "nats-core":
            async with NatsCoreSite(request.getfixturevalue("own_nats")) as nats_core:
                yield nats_core
        case "rabbitmq":
            yield RabbitMQSite(request.getfixturevalue("rabbitmq"))
        case "rabbitmq-stream":
            from tests.support.outlets.rabbitmq_stream_site import RabbitMQStreamSite  # rstream

            yield RabbitMQStreamSite(request.getfixturevalue("rabbitmq"))
        case "redis_node" | "redis_cluster":
            yield RedisSite(request.getfixturevalue(request.param))
        case "rocketmq":
            from tests.support.outlets.rocketmq_site import RocketMQSite  # gRPC and the client: over a second

            yield RocketMQSite(request.getfixturevalue("rocketmq"))


@pytest.fixture
async def outlet(site: OutletSite) -> AsyncIterator[Outlet]:
    outlet = await site.outlet()
    yield outlet
    await outlet.close()


async def test_payload_key_and_id_arrive_byte_for_byte(site: OutletSite, outlet: Outlet) -> None:
    messages = [out_message(number, payload=body, key=b"key-%d" % number) for number, body in enumerate(BODIES)]
    for message in messages:
        assert (await outlet.send(message)).result is Result.ACCEPTED
    received = await site.received(len(messages))
    assert {(each.id, each.key, each.payload) for each in received} == {
        (message.id, message.key, message.payload) for message in messages
    }


async def test_headers_arrive_in_their_order(site: OutletSite, outlet: Outlet) -> None:
    headers = [("a", b"1"), ("Trace-Parent", b"00-abc"), ("b", "ü".encode())]
    if site.keeps_headers:
        headers += [("a", b"2"), ("raw", b"\xff\x00\n")]
    assert (await outlet.send(out_message(headers=headers))).result is Result.ACCEPTED
    (received,) = await site.received(1)
    assert received.headers == headers


async def test_null_arrives_apart_from_empty(site: OutletSite, outlet: Outlet) -> None:
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("gone", None)]
    for number, payload in enumerate((None, b"")):
        sent = out_message(number, payload=payload, headers=headers[: 2 - number])
        assert (await outlet.send(sent)).result is Result.ACCEPTED
    received = {each.id: each for each in await site.received(2)}
    null, empty = received[out_message(0).id], received[out_message(1).id]
    assert (null.payload, null.headers) == (None, headers)
    assert (empty.payload, empty.headers) == (b"", headers[:1])


async def test_many_at_once_arrive_each_once(site: OutletSite, outlet: Outlet) -> None:
    messages = [out_message(number, payload=b"%d" % number) for number in range(500)]
    for start in range(0, 500, outlet.concurrency):
        replies = await asyncio.gather(*map(outlet.send, messages[start : start + outlet.concurrency]))
        assert {reply.result for reply in replies} == {Result.ACCEPTED}
    received = await site.received(500)
    assert sorted(each.id for each in received) == sorted(message.id for message in messages)


async def test_a_repeat_has_the_same_id(site: OutletSite, outlet: Outlet) -> None:
    for _ in range(2):
        assert (await outlet.send(out_message(7))).result is Result.ACCEPTED
    received = await site.received(1 if site.tells_repeats_apart else 2)
    assert {each.id for each in received} == {out_message(7).id}
    assert len(received) == (1 if site.tells_repeats_apart else 2)


async def test_a_cancelled_send_leaves_the_outlet_of_use(site: OutletSite, outlet: Outlet) -> None:
    sending = asyncio.create_task(outlet.send(out_message(1)))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert (await outlet.send(out_message(2))).result is Result.ACCEPTED
    assert out_message(2).id in {each.id for each in await site.received(2)}


async def test_where_nobody_is_there_it_says_so_and_goes_on_afterwards(site: OutletSite, outlet: Outlet) -> None:
    assert (await outlet.send(out_message(1))).result is Result.ACCEPTED
    await site.stop()
    if site.name != "memory":
        async with asyncio.timeout(30):
            reply = await outlet.send(out_message(2))
        assert reply.result in (Result.AWAY, Result.FAILED)
        assert reply.status
    await site.start()
    async with asyncio.timeout(SERVERS_S):
        while (await outlet.send(out_message(3))).result is not Result.ACCEPTED:  # noqa: ASYNC110  # it comes back
            await asyncio.sleep(0.1)
    ids = [each.id for each in await site.received(2)]
    assert {out_message(1).id, out_message(3).id} <= set(ids)


async def test_closed_twice_it_is_closed(outlet: Outlet) -> None:
    await outlet.send(out_message(1))
    await outlet.close()
    await outlet.close()
