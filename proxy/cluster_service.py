"""`duemq node` and `duemq proxy`: the two kinds of processes of a cluster on Kafka and ZooKeeper."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

from duemq.bus.kafka.bus import KafkaBus
from duemq.delay.backend import NodeBackend, ProxyBackend
from duemq.delay.buffer_age import BufferAge
from duemq.delay.clock import GuardedClock
from duemq.delay.clock_watch import ClockWatch
from duemq.delay.follower import LedgerFollower
from duemq.delay.freeze import freeze
from duemq.delay.node import Node
from duemq.delay.snapshot import SnapshotServer
from duemq.delay.targets import Targets
from duemq.delay.topics import create_logs
from duemq.election.base import Member
from duemq.election.layout import Meta
from duemq.election.registry import Registry
from duemq.election.zookeeper import ZooKeeperElection
from duemq.model.errors import BadConfig, Unavailable
from duemq.model.ids import IdCodec
from duemq.proxy import adopted_files, snapshots
from duemq.proxy.admission import Admission
from duemq.proxy.config import Settings
from duemq.proxy.control import Control
from duemq.proxy.door import create_door
from duemq.proxy.http_server import listen_on, serve_http, stop_on_signals, url_of
from duemq.proxy.peers import HttpPeers
from duemq.proxy.remote import RemoteReader, node_client
from duemq.proxy.wiring import (
    check_cluster,
    connection_limits,
    front_door,
    guarded_clock,
    node_options,
    open_bus,
    registry,
    zookeeper_options,
)
from duemq.storage.folder import SNAPSHOTS, Folder, Identity

log = logging.getLogger(__name__)

_SHARDS = 4  # of a cluster whose number nobody chose: enough for a few nodes to share
_LOOK_AGAIN_S = 0.5
_EXPIRE_S = 30.0  # how often abandoned snapshots are looked for


async def _open_directory(settings: Settings, opened: AsyncExitStack) -> Registry:
    directory = Registry(zookeeper_options(settings), settings.cluster)
    await directory.open()
    opened.push_async_callback(directory.close)
    return directory


async def _meta(directory: Registry, settings: Settings, stop: asyncio.Event, *, makes: bool) -> Meta | None:
    """What the cluster shares. Who makes it may be the first; others wait for that, None if they are stopped."""
    if "shards" in settings.model_fields_set:
        return await directory.meta(settings.shards)
    told = False
    while not stop.is_set():
        try:
            return await directory.meta()
        except Unavailable as error:
            if makes:
                return await directory.meta(_SHARDS)
            if not told:
                log.info("waiting for a delay node: %s", error, extra={"action": "wait"})
            told = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await stop.wait()
    return None


def _told_host(advertise: str, bound: str) -> str:
    """The host by which proxies and other nodes are told to reach this one. Raises BadConfig where none can."""
    host = advertise.strip("[]") or bound
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if ":" in host or "/" in host:
            raise BadConfig(f"node.advertise = {advertise!r}: it must be a host alone, without a port") from None
        return host  # a name
    if (getattr(address, "ipv4_mapped", None) or address).is_unspecified:
        key = "node.advertise" if advertise else "node.listen"
        raise BadConfig(
            f"{key} = {host} stands for every address of this machine, and nobody else can reach it by that: "
            "set node.advertise to the host name or address by which proxies and other nodes do"
        )
    return host


async def run_node(settings: Settings, worker: int | None = None, workers: int = 1) -> None:
    """Be a delay node until SIGINT or SIGTERM. Raises Fatal where the start is wrong.

    `worker` of `workers`: this process holds a part of the shards, with a name, a folder and a port of its own.
    """
    check_cluster(settings)
    name, data, listen = settings.node.name or socket.gethostname(), settings.data, settings.node.listen
    if worker is not None:
        host, _, port = listen.rpartition(":")
        name, data, listen = f"{name}.{worker}", data / f"worker-{worker}", f"{host}:{int(port) + worker}"
    async with AsyncExitStack() as opened:
        listener = listen_on(listen)
        opened.callback(listener.close)
        bound = str(listener.getsockname()[0])
        host = _told_host(settings.node.advertise, bound)
        stop = stop_on_signals()
        directory = await _open_directory(settings, opened)
        meta = await _meta(directory, settings, stop, makes=True)
        assert meta is not None
        folder = Folder.open(data, identity=Identity(meta.cluster, meta.shards, meta.secret))
        opened.callback(folder.close)
        holds = None if worker is None else frozenset(range(worker, meta.shards, workers))
        me = Member(name, url_of(listener, host), rack=settings.node.rack, holds=holds)
        election = ZooKeeperElection(directory, me, meta.shards, bound, settings.node.link_port)
        clock, metrics = guarded_clock(settings), registry()

        async def checkpoint(shard: int, into: Path) -> None:
            await node.checkpoint(shard, into)

        served = SnapshotServer(folder.info.path / SNAPSHOTS, checkpoint)
        opened.push_async_callback(served.close)
        peers = HttpPeers(directory, name, settings.node.token)
        opened.push_async_callback(peers.close)
        node = Node(
            folder,
            lambda: open_bus(settings, clock),
            election,
            node_options(settings, alone=False, trims=False, holds=holds),
            metrics,
            clock,
            peers,
            [(served.expire, _EXPIRE_S)],
        )
        await opened.enter_async_context(Control(folder.info.path, partial(freeze, node), node.recover))
        backend = NodeBackend(node, settings.http.answer_timeout_ms / 1000)
        more = [*snapshots.routes(served), *adopted_files.routes(node)]
        admission = Admission(settings.http.max_requests, settings.http.max_inflight_bytes)
        door = create_door(backend, metrics, settings.node.token, more, admission)
        await serve_http(
            door, listener, me.url, settings.http.shutdown_grace_s, stop, node.ready.wait, node.run,
            limits=connection_limits(settings),
        )  # fmt: skip


async def _reach_brokers(
    settings: Settings, shards: int, clock: GuardedClock, opened: AsyncExitStack, stop: asyncio.Event
) -> tuple[KafkaBus, ClockWatch, Targets] | None:
    """What a proxy learns of the brokers before it serves, asked again while they are away; None if it is stopped."""
    told = ""
    while not stop.is_set():
        try:
            async with AsyncExitStack() as attempt:
                bus = await open_bus(settings, clock)
                attempt.push_async_callback(bus.close)
                watch = ClockWatch(clock, settings.node.max_clock_offset_ms)
                await watch.measure(bus)
                await create_logs(bus, shards)
                targets = Targets(bus, settings.topics.partitions)
                attempt.push_async_callback(targets.close)
                await targets.learn()
                await opened.enter_async_context(attempt.pop_all())
                return bus, watch, targets
        except Unavailable as error:
            if str(error) != told:
                log.warning("waiting for the brokers: %s", error, extra={"action": "wait"})
            told = str(error)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await stop.wait()
    return None


async def run_proxy(settings: Settings, *, shared: bool = False) -> None:
    """Be a proxy until SIGINT or SIGTERM. `shared`: other processes listen on the same port."""
    check_cluster(settings)
    async with AsyncExitStack() as opened:
        listener = listen_on(settings.listen, shared=shared)
        stop = stop_on_signals()
        directory = await _open_directory(settings, opened)
        meta = await _meta(directory, settings, stop, makes=False)
        if meta is None:
            return
        clock, metrics = guarded_clock(settings), registry()
        reached = await _reach_brokers(settings, meta.shards, clock, opened, stop)
        if reached is None:
            return
        bus, watch, targets = reached
        follower = LedgerFollower(bus, meta.shards)
        age = BufferAge(settings.kafka.retention, watch.accepting)
        http = node_client(settings.http.answer_timeout_ms / 1000, settings.node.token)
        opened.push_async_callback(http.aclose)
        backend = ProxyBackend(
            meta.cluster, bus, IdCodec(meta.secret), targets, follower, RemoteReader(directory, http), directory,
            directory, watch, metrics, age,
        )  # fmt: skip
        app = front_door(settings, backend, metrics, stop)

        async def follow(shut: asyncio.Event) -> None:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(follower.run(), name="ledger"),
                    group.create_task(watch.run(bus), name="clock"),
                    group.create_task(age.run(bus, follower.applied), name="buffer age"),
                ]
                await shut.wait()
                for task in tasks:
                    task.cancel()

        await serve_http(
            app,
            listener,
            url_of(listener, settings.host),
            settings.http.shutdown_grace_s,
            stop,
            follower.ready.wait,
            follow,
            limits=connection_limits(settings),
        )
