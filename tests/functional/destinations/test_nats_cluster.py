"""The outlet to a cluster of NATS servers: those that die are the one it is connected to, and the stream's leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from duemq.dev.servers.ports import HOST
from duemq.model.destinations.destination import Credentials, read_credentials
from duemq.relay.base import Result
from duemq.relay.nats.outlet import NatsOutlet
from tests.support.destinations.nats_cluster import NatsCluster, current_stream, stream_on_three
from tests.support.outlets.nats_site import nats_outlet, stored
from tests.support.outlets.site import out_message
from tests.support.patience import SERVERS_S
from tests.support.servers.real_servers import need

pytestmark = [pytest.mark.anyio, pytest.mark.servers, pytest.mark.smoke, pytest.mark.xdist_group("destinations")]

MESSAGES = 6_000


async def hand_on(outlet: NatsOutlet, breakages: dict[int, Callable[[], object]]) -> dict[str, int]:
    """All messages, each until it is accepted, and before these numbers something breaks. How often what was said."""
    numbers, statuses = iter(range(MESSAGES)), dict[str, int]()

    async def worker() -> None:
        for number in numbers:
            if number in breakages:
                await asyncio.to_thread(breakages[number])
            message = out_message(number, payload=b"%d" % number)
            while True:
                try:
                    async with asyncio.timeout(5):
                        result, status, *_ = await outlet.send(message)
                except TimeoutError:
                    result, status = Result.FAILED, "timeout"
                statuses[status] = statuses.get(status, 0) + 1
                if result is Result.ACCEPTED:
                    break
                assert result in (Result.AWAY, Result.FAILED)
                await asyncio.sleep(0.1)

    async with asyncio.timeout(SERVERS_S):
        await asyncio.gather(*(worker() for _ in range(outlet.concurrency)))
    return statuses


async def until_accepted(outlet: NatsOutlet, number: int) -> None:
    async with asyncio.timeout(SERVERS_S):
        while (await outlet.send(out_message(number))).result is not Result.ACCEPTED:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_servers_killed_on_the_way_leave_each_message_once(tmp_path: Path) -> None:
    with need(lambda: NatsCluster(tmp_path)) as cluster:
        first, second, _ = cluster.nodes
        await stream_on_three(cluster.url, "ORDERS", "orders")
        await current_stream(second, "ORDERS")
        outlet = nats_outlet(first, subject="orders")
        killed = []

        def kill_the_leader() -> None:
            first.start()  # two of three have to live
            info = asyncio.run(current_stream(second, "ORDERS"))
            assert info.cluster and info.cluster.leader
            leader = cluster.node(info.cluster.leader)
            leader.kill()
            killed.append(leader)

        statuses = await hand_on(outlet, {2_000: first.kill, 4_000: kill_the_leader})
        await outlet.close()
        killed[0].start()
        await current_stream(killed[0], "ORDERS")
        arrived = await stored(killed[0], "ORDERS")
        assert sorted(int(each.payload or b"") for each in arrived) == list(range(MESSAGES)), statuses


USER = 'authorization { user: relay, password: "s3cret word" }'


def credentials_of(cluster: NatsCluster) -> Credentials:
    files = cluster.nodes[0].client
    ca, cert, key = (Path(path).read_text() for path in (files.ca, files.cert, files.key))
    return read_credentials({"username": "relay", "password": "s3cret word", "ca": ca, "cert": cert, "key": key})


async def test_the_others_have_to_show_the_name_of_the_destination(tmp_path: Path) -> None:
    # They tell of one another by their addresses: `localhost` is the name in the URL alone.
    hosts = ("localhost", "localhost", HOST)
    with need(lambda: NatsCluster(tmp_path, tls=True, settings=USER, hosts=hosts)) as cluster:
        first, second, third = cluster.nodes
        outlet = nats_outlet(first, credentials_of(cluster), subject="orders", jetstream=False)
        await until_accepted(outlet, 1)
        first.kill()
        second.kill()
        async with asyncio.timeout(SERVERS_S):
            while "not valid for 'localhost'" not in (reply := await outlet.send(out_message(2))).detail:
                assert reply.result is Result.AWAY, reply
        assert reply[:2] == (Result.AWAY, "tls")
        second.start()
        await until_accepted(outlet, 2)
        third.kill()
        assert (await outlet.send(out_message(3))).status == "ok"
        await outlet.close()
