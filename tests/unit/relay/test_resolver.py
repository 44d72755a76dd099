"""Names of destinations: looked up apart from each other, checked, and the same for every system."""

from __future__ import annotations

import asyncio
import socket
import statistics
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from ipaddress import ip_network
from typing import Any
from unittest import mock

import pytest

from duemq.model.destinations.destination import Credentials, read_destination
from duemq.relay.base import Result
from duemq.relay.network import resolver as resolver_module
from duemq.relay.network.address import ForbiddenAddress
from duemq.relay.network.resolver import LookupFailed, Resolver
from duemq.relay.outlets import RelayPolicy, open_outlet
from tests.support.outlets.site import LOOPBACK, out_message

pytestmark = pytest.mark.anyio

ALLOWED = [ip_network("127.0.0.0/8")]
_lookup = socket.getaddrinfo


@pytest.fixture
def silent_names() -> Iterator[threading.Event]:
    """The resolver of this machine, which does not answer for `*.slow` until the event is set, and has `*.good`."""
    answers = threading.Event()

    def getaddrinfo(host: str, *rest: Any, **options: Any) -> Any:
        if host.endswith(".slow"):
            answers.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return _lookup("127.0.0.1" if host.endswith(".good") else host, *rest, **options)

    with mock.patch.object(socket, "getaddrinfo", getaddrinfo):
        yield answers
        answers.set()


@pytest.fixture
async def sink() -> AsyncIterator[tuple[int, list[int]]]:
    """A port, and how many connections came."""
    connections = [0]

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[0] += 1
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield listening.sockets[0].getsockname()[1], connections


URLS = {
    "http": "http://{host}:{port}/",
    "amqp": "amqp://{host}:{port}/",
    "stream": "amqp://{host}/",
    "nats": "nats://{host}:{port}",
    "redis": "redis://{host}:{port}",
    "cluster": "redis://{host}:{port}",
    "rocketmq": "rocketmq://{host}:{port}",
}


def outlet_to(system: str, host: str, port: int, policy: RelayPolicy, timeout: int = 3_000) -> Any:
    options: dict[str, Any] = {"stream": "orders", "stream_port": port} if system == "stream" else {}
    if system == "cluster":
        options = {"cluster": True}
    url = URLS[system].format(host=host, port=port)
    destination = read_destination({"name": "there", "url": url, "timeout": timeout, "options": options})
    return open_outlet(destination, Credentials(), policy)


@pytest.mark.parametrize("host", ["127.0.0.1", "inside.good"])
@pytest.mark.parametrize("system", URLS)
async def test_no_system_is_reached_inside_unless_the_operator_allows_it(
    system: str, host: str, sink: tuple[int, list[int]], silent_names: threading.Event
) -> None:
    port, connections = sink
    outlet = outlet_to(system, host, port, RelayPolicy())
    reply = await outlet.send(out_message(1))
    await outlet.close()
    assert (reply.result, reply.status, connections[0]) == (Result.AWAY, "forbidden_address", 0)
    assert "relay.private_networks" in reply.detail
    outlet = outlet_to(system, host, port, LOOPBACK)
    reply = await outlet.send(out_message(1))
    await outlet.close()
    assert reply.status != "forbidden_address" and connections[0] > 0, "so the sink sees what comes"


@pytest.mark.parametrize("system", URLS)
async def test_a_name_that_is_not_answered_is_away_within_the_time_out(
    system: str, silent_names: threading.Event
) -> None:
    outlet = outlet_to(system, "some.slow", 1, LOOPBACK, timeout=2_000)
    async with asyncio.timeout(2.1):
        replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(20)))
    silent_names.set()
    await outlet.close()
    assert {(reply.result, reply.status) for reply in replies} == {(Result.AWAY, "timeout")}


@pytest.mark.parametrize("system", URLS)
async def test_a_name_that_does_not_exist_is_away(system: str) -> None:
    outlet = outlet_to(system, "nowhere.invalid", 1, LOOPBACK)
    reply = await outlet.send(out_message(1))
    await outlet.close()
    assert (reply.result, reply.status) == (Result.AWAY, "dns_error")


async def times_ms(names: int, rounds: int, port: int) -> list[float]:
    """Of a connection to each of some good names, each with a new look-up."""

    async def timed(name: str) -> float:
        resolver, begun = Resolver(ALLOWED), time.perf_counter()
        (await resolver.connect(name, port, 5)).close()
        await resolver.close()
        return (time.perf_counter() - begun) * 1000

    times: list[float] = []
    for number in range(rounds):
        times += await asyncio.gather(*(timed(f"n{number}-{name}.good") for name in range(names)))
    return times


async def test_two_names_that_are_not_answered_delay_none_of_twenty_others(
    sink: tuple[int, list[int]], silent_names: threading.Event
) -> None:
    port, _ = sink
    await times_ms(20, 5, port)
    alone = await times_ms(20, 50, port)
    slow = [Resolver(ALLOWED) for _ in range(2)]
    waiting = [asyncio.create_task(each.addresses(f"s{number}.slow")) for number, each in enumerate(slow)]
    await asyncio.sleep(0)
    beside = await times_ms(20, 50, port)
    assert not any(task.done() for task in waiting)
    silent_names.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    # Behind a pool of two that both hold these would be a minute.
    assert statistics.median(beside) < statistics.median(alone) * 1.5 + 20
    assert max(beside) < 5_000


async def test_a_name_has_one_look_up_under_way_and_serves_its_old_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answers = 0, asyncio.Event()

    async def lookup(host: str) -> Sequence[str]:
        nonlocal asked
        asked += 1
        if asked > 1:
            await answers.wait()
        return ["127.0.0.1", "127.0.0.2"]

    monkeypatch.setattr(resolver_module, "LOOKUP_S", 0.0)
    resolver = Resolver(ALLOWED, lookup)
    for _ in range(5):
        assert await resolver.addresses("a.example") == ["127.0.0.1", "127.0.0.2"]
        await asyncio.sleep(0)
    assert asked == 2
    resolver.failed("a.example", "127.0.0.1")
    assert await resolver.addresses("a.example") == ["127.0.0.2"]
    resolver.failed("a.example", "127.0.0.2")
    assert await resolver.addresses("a.example") == ["127.0.0.1", "127.0.0.2"], "each failed: all again"
    await resolver.close()


async def test_the_next_address_is_connected_to_where_one_refuses(sink: tuple[int, list[int]]) -> None:
    async def lookup(host: str) -> Sequence[str]:
        return ["10.0.0.1", "127.0.0.3", "127.0.0.1"]

    resolver = Resolver(ALLOWED, lookup)
    connection = await resolver.connect("a.example", sink[0], 5)
    assert connection.getpeername()[0] == "127.0.0.1"
    connection.close()
    await resolver.close()


async def test_look_ups_are_bounded_and_names_are_forgotten(silent_names: threading.Event) -> None:
    with mock.patch.object(resolver_module, "_threads", threading.BoundedSemaphore(2)):
        slow = [Resolver(ALLOWED) for _ in range(3)]
        waiting = [asyncio.create_task(each.addresses("s.slow")) for each in slow]
        with pytest.raises(LookupFailed, match="other names"):
            await waiting[2]
        silent_names.set()
        await asyncio.wait(waiting)
    resolver = Resolver([])
    for number in range(200):
        with pytest.raises(ForbiddenAddress):
            await resolver.addresses(f"127.0.0.{number}")
    assert len(resolver.names) <= 64
