"""A proxy without a store in front of a node, both on one log in memory, for tests: two servers in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
import uvloop
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from duemq.bus.base import wall_clock
from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.backend import NoCluster
from duemq.cluster.clocks.clock_watch import ClockWatch
from duemq.cluster.topics.topic_states import TopicStates
from duemq.delay.api.internal_http import create_internal_app
from duemq.delay.core.disk_watermarks import NEVER
from duemq.delay.node import Node, NodeOptions
from duemq.delay.node_backend import NodeBackend
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.election.single import SingleElection
from duemq.model.messages.ids import IdCodec
from duemq.proxy.app import create_app
from duemq.proxy.gateway.cluster_backend import ProxyBackend
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.proxy.gateway.ledger_follower import LedgerFollower
from duemq.proxy.gateway.remote_reader import RemoteReader, node_client
from duemq.proxy.request.ingress import Ingress, MessageLimits
from duemq.storage.data_folder import Folder
from duemq.storage.imports.policy import ImportPolicy
from duemq.web.settings import HttpSettings

TOKEN = "between us"
SHARDS = 3
# 2 and 0.5 in production; a busy machine would answer 503 and 202 where a test wants to see the rest.
_ANSWER_S, _CONNECT_S = 60.0, 60.0


class Server(uvicorn.Server):
    """An application on a free port of this machine."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        super().__init__(uvicorn.Config(app, lifespan="off", ws="none", log_config=None, access_log=False))
        self._listener = listener

    async def run_here(self) -> None:
        await self.serve(sockets=[self._listener])


def bound() -> tuple[socket.socket, str]:
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


def importing(folder: Path) -> ImportPolicy:
    """Files may be imported from `shared`, beside the data folder."""
    return ImportPolicy((folder.resolve().with_name("shared"),))


@asynccontextmanager
async def running_node(
    folder: Path,
    log: MemoryLog,
    url: str,
    shards: int = SHARDS,
    least_s: float = 0.002,
    delay_files: TieringPolicy = TieringPolicy(),  # noqa: B008
) -> AsyncIterator[Node]:
    """A node that is master of all shards of the log."""

    async def open_bus() -> MemoryBus:
        return MemoryBus(log)

    opened = Folder.open(folder, shards)
    options = NodeOptions(linger_s=least_s, marks=NEVER, importing=importing(folder), delay_files=delay_files)
    node = Node(opened, open_bus, SingleElection(shards, url), options, CollectorRegistry(), wall_clock)
    stop = asyncio.Event()
    task = asyncio.create_task(node.run(stop), name="node")
    try:
        await node.ready.wait()
        yield node
    finally:
        stop.set()
        await task
        opened.close()


async def _serve(folder: Path, started: Future[str], stop: asyncio.Event, delay_files: TieringPolicy) -> None:
    log = MemoryLog()
    (door_listener, door_url), (listener, url) = bound(), bound()
    async with running_node(folder, log, door_url, delay_files=delay_files) as node, asyncio.TaskGroup() as group:
        internal = Server(create_internal_app(NodeBackend(node, _ANSWER_S), CollectorRegistry(), TOKEN), door_listener)
        group.create_task(internal.run_here(), name="internal")
        bus, registry = MemoryBus(log), CollectorRegistry()
        follower = LedgerFollower(bus, SHARDS)
        following = group.create_task(follower.run(), name="follower")
        watch = ClockWatch(wall_clock)
        await watch.measure(bus)
        async with node_client(_ANSWER_S, TOKEN, connect_s=_CONNECT_S) as http:
            backend = ProxyBackend(
                "test", bus, IdCodec(node.folder.info.secret), TopicStates(bus, 2), follower,
                RemoteReader(node.election, http), node.election, NoCluster(), watch, registry,
            )  # fmt: skip
            gateway, ingress = (
                CommandGateway(backend, answer_s=_ANSWER_S),
                Ingress(MessageLimits(), backend.why_clock_out),
            )
            app = create_app(gateway, ingress, HttpSettings(), registry, wall_clock, stop, importing(folder))
            front = Server(app, listener)
            serving = group.create_task(front.run_here(), name="front")
            while backend.why_not_ready() is not None or not front.started or not internal.started:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            started.set_result(url)
            await stop.wait()
            front.should_exit = True
            await serving
            internal.should_exit = True
            following.cancel()


@contextmanager
def proxy_site(folder: Path, delay_files: TieringPolicy = TieringPolicy()) -> Iterator[str]:  # noqa: B008
    """The URL of the proxy."""
    started: Future[str] = Future()
    handles: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        stop = asyncio.Event()
        handles.append((asyncio.get_running_loop(), stop))
        try:
            await _serve(folder, started, stop, delay_files)
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    def in_thread() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=in_thread, name="proxy site")
    thread.start()
    try:
        yield started.result(300)
    finally:
        for loop, stop in handles:
            loop.call_soon_threadsafe(stop.set)
        thread.join(300)
