"""Each system and each trouble on its real server: whether a message waits without a try, is tried again by the rule of
its destination, or is a dead letter, always with the other side's text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import StorageType

from duemq.relay.base import Outlet, Reply, Result
from tests.support.destinations.nats_node import NatsNode
from tests.support.destinations.rabbitmq_node import RabbitMQNode
from tests.support.outlets.http_site import Endpoint
from tests.support.outlets.matrix import (
    NATS_SETTINGS,
    TIMEOUT_MS,
    WRONG,
    HttpTrouble,
    NatsTrouble,
    RabbitMQTrouble,
    RedisTrouble,
    RocketMQTrouble,
    StreamTrouble,
    Trouble,
)
from tests.support.outlets.site import out_message
from tests.support.patience import SERVERS_S
from tests.support.servers.real_servers import need

_GROUP = pytest.mark.xdist_group("destinations")
pytestmark = [pytest.mark.anyio, _GROUP]

_IN_CI = [pytest.mark.servers, pytest.mark.smoke]
_SLOW = [pytest.mark.servers, pytest.mark.slow]
SYSTEMS = [
    "http",
    pytest.param("redis", marks=_IN_CI),
    pytest.param("nats", marks=_IN_CI),
    pytest.param("nats-core", marks=_SLOW),
    pytest.param("rabbitmq", marks=_SLOW),
    pytest.param("rabbitmq-stream", marks=_SLOW),
    pytest.param("rocketmq", marks=_SLOW),
]
AWAY, FAILED = Result.AWAY, Result.FAILED
FROZEN = {
    "http": (FAILED, "timeout"),  # it may have the request: it cannot be told from a slow one
    "redis": (AWAY, "timeout"),
    "nats": (AWAY, "connection_lost"),
    "nats-core": (AWAY, "timeout"),
    "rabbitmq": (AWAY, "heartbeat"),
    "rabbitmq-stream": (AWAY, "heartbeat"),
    "rocketmq": (AWAY, "DEADLINE_EXCEEDED"),
}
REFUSED_NAME = {
    "http": (FAILED, "403"),
    "redis": (FAILED, "NOPERM"),
    "nats": (FAILED, "permissions"),
    "nats-core": (FAILED, "permissions"),
    "rabbitmq": (FAILED, "ACCESS_REFUSED"),
}
REFUSED_USER = {
    "http": (FAILED, "401"),  # most of them are a deployment, and pass; nothing tells which
    "redis": (AWAY, "WRONGPASS"),
    "nats": (AWAY, "authorization"),
    "nats-core": (AWAY, "authorization"),
    "rabbitmq": (AWAY, "ACCESS_REFUSED"),
    "rabbitmq-stream": (AWAY, "AUTHENTICATION_FAILURE"),
}
FULL = {
    "http": (FAILED, "507"),
    "redis": (AWAY, "OOM"),
    "rabbitmq": (AWAY, "blocked"),
    "rabbitmq-stream": (AWAY, "unconfirmed"),
    "rocketmq": (AWAY, "INTERNAL_SERVER_ERROR"),
}


@pytest.fixture
async def system(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[str, Trouble]]:
    name: str = request.param
    match name:
        case "http":
            endpoint = Endpoint()
            await endpoint.start()
            yield name, HttpTrouble(endpoint)
            await endpoint.stop()
        case "redis":
            yield name, RedisTrouble(request.getfixturevalue("own_redis"))
        case "nats" | "nats-core":
            with need(lambda: NatsNode(tmp_path, settings=NATS_SETTINGS)) as node:
                trouble: Any = NatsTrouble(node, jetstream=name == "nats")
                await trouble.prepare()
                yield name, trouble
        case "rabbitmq" | "rabbitmq-stream":
            with need(lambda: RabbitMQNode(tmp_path)) as rabbit:
                yield name, StreamTrouble(rabbit) if name.endswith("stream") else RabbitMQTrouble(rabbit)
        case "rocketmq":
            server = request.getfixturevalue("rocketmq")
            await asyncio.to_thread(server.create_topic, "trouble")
            yield name, RocketMQTrouble(server)


@asynccontextmanager
async def opened(outlet: Outlet) -> AsyncIterator[Outlet]:
    try:
        yield outlet
    finally:
        await outlet.close()


async def replies(outlet: Outlet, first: int, count: int, key: bytes) -> list[Reply]:
    """All before the time-out of the destination, as the relay has it."""
    async with asyncio.timeout(TIMEOUT_MS / 1000 + 0.1):
        return await asyncio.gather(*(outlet.send(out_message(first + n, key=key)) for n in range(count)))


async def accepted(outlet: Outlet, number: int, key: bytes) -> None:
    async with asyncio.timeout(SERVERS_S):
        while (await outlet.send(out_message(number, key=key))).result is not Result.ACCEPTED:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def kinds(told: list[Reply]) -> set[tuple[Result, str]]:
    assert all(reply.detail for reply in told)
    return {(reply.result, reply.status) for reply in told}


@pytest.mark.parametrize("system", SYSTEMS, indirect=True)
async def test_a_server_in_trouble(system: tuple[str, Trouble]) -> None:
    """Frozen, slow, without room for messages; a name that is refused; a user who is refused."""
    name, trouble = system
    good = trouble.good
    async with opened(trouble.outlet()) as outlet:
        await accepted(outlet, 0, good)

        await trouble.freeze()
        frozen = await replies(outlet, 1_000, 40 if name == "http" else 1_200, good)
        await trouble.thaw()
        assert kinds(frozen) == {FROZEN[name]}
        await accepted(outlet, 1, good)

        await trouble.freeze()
        sending = asyncio.create_task(replies(outlet, 3_000, 20, good))
        await asyncio.sleep(TIMEOUT_MS / 10_000)
        await trouble.thaw()
        if name != "http":  # a test's endpoint does not answer later what it did not answer at once
            assert {reply.result for reply in await sending} == {Result.ACCEPTED}
        await asyncio.gather(sending, return_exceptions=True)

        if name in FULL:
            async with trouble.full():
                assert kinds(await replies(outlet, 4_000, 40, good)) == {FULL[name]}
            await accepted(outlet, 2, good)

        if name in REFUSED_NAME:
            keys = [good, trouble.bad] * 10
            sending_both = [outlet.send(out_message(5_000 + number, key=key)) for number, key in enumerate(keys)]
            if name == "http":  # the endpoint knows the last request alone
                both = [await one for one in sending_both]
            else:
                both = await asyncio.gather(*sending_both)
            assert {reply.result for reply in both[::2]} == {Result.ACCEPTED}
            assert kinds(both[1::2]) == {REFUSED_NAME[name]}

    if name in REFUSED_USER:
        async with opened(trouble.outlet(WRONG)) as outlet:
            assert kinds(await replies(outlet, 6_000, 3, good)) == {REFUSED_USER[name]}


@pytest.mark.servers
@pytest.mark.smoke
async def test_a_nats_without_memory_is_away(tmp_path: Path) -> None:
    settings = NATS_SETTINGS + "jetstream { max_mem: 1M }\n"
    with need(lambda: NatsNode(tmp_path, settings=settings)) as node:
        trouble = NatsTrouble(node)
        await trouble.prepare(StorageType.MEMORY)
        async with opened(trouble.outlet()) as outlet:
            told = [await outlet.send(out_message(n, key=b"good", payload=b"x" * 100_000)) for n in range(12)]
    assert told[0].result is Result.ACCEPTED
    assert (told[-1].result, told[-1].status) == (AWAY, "10023"), told[-1]
