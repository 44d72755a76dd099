"""Three real NATS servers as one cluster, whose streams may have three replicas."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from pathlib import Path

import nats
from nats.js.api import StreamInfo

from duemq.dev.servers.ports import HOST, free_port
from duemq.dev.servers.process import wait_for
from duemq.dev.servers.running import RunningServer
from tests.support.destinations.nats_node import NatsNode
from tests.support.tls.certificates import Authority

_READY_WITHIN_S = 60.0


class NatsCluster(RunningServer):
    """`nodes`: `n0` to `n2`. `url`: of the first; it tells of the others. `settings`: lines for each of them.
    `tls`: they show certificates with the names `hosts`, and want one.

    Raises NotAvailable, as NatsNode does.
    """

    def __init__(
        self, folder: Path, *, tls: bool = False, settings: str = "", hosts: Sequence[str] = (HOST,) * 3
    ) -> None:
        authority = Authority.make(folder)
        ports = [free_port() for _ in range(3)]
        routes = ", ".join(f"nats://{HOST}:{port}" for port in ports)
        self.nodes = [
            NatsNode(
                folder / f"n{number}", tls=tls, verify=tls, authority=authority, host=hosts[number],
                settings=f'server_name: n{number}\n'
                f'cluster {{ name: duemq, listen: "{HOST}:{port}", routes: [{routes}] }}\n{settings}',
            )
            for number, port in enumerate(ports)
        ]  # fmt: skip
        self.url, self.ca = self.nodes[0].url, authority.ca

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        wait_for(lambda: all(map(_knows_the_others, self.nodes)), "the cluster", _READY_WITHIN_S)

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def node(self, name: str) -> NatsNode:
        """That of a name such as `n1`."""
        return self.nodes[int(name.removeprefix("n"))]


def _knows_the_others(node: NatsNode) -> bool:
    with socket.create_connection((HOST, node.port)) as connection, connection.makefile("rb") as lines:
        info = json.loads(lines.readline().removeprefix(b"INFO "))
    return len(info.get("connect_urls", ())) == 3


async def stream_on_three(url: str, name: str, subject: str) -> None:
    """Declare a stream of three replicas, once the servers have found one another and a leader."""
    async with asyncio.timeout(_READY_WITHIN_S), await nats.connect(url) as client:
        while True:
            try:
                await client.jetstream().add_stream(name=name, subjects=[subject], num_replicas=3)
            except (nats.errors.Error, TimeoutError):
                await asyncio.sleep(0.2)
            else:
                return


async def current_stream(node: NatsNode, name: str) -> StreamInfo:
    """Of a stream with a leader, and two replicas that have all of it."""
    async with asyncio.timeout(_READY_WITHIN_S), await nats.connect(node.url) as client:
        while True:
            try:
                info = await client.jetstream().stream_info(name)
            except (nats.errors.Error, TimeoutError):
                pass
            else:
                cluster = info.cluster
                if cluster and cluster.leader and cluster.replicas and all(one.current for one in cluster.replicas):
                    return info
            await asyncio.sleep(0.2)
