"""`duemq node`: a delay node of a cluster on Kafka and ZooKeeper."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from duemq.cli.settings.settings import Settings
from duemq.cli.systemd.notifier import Notifier
from duemq.cli.systemd.watchdog import watchdog
from duemq.cli.tracing.open import observer_for, open_tracing
from duemq.cli.wiring.admin import administration_of, beside, key_maker
from duemq.cli.wiring.membership import open_directory, shared_identity
from duemq.cli.wiring.node_options import node_options
from duemq.cli.wiring.parts import (
    check_cluster,
    check_node_access,
    connection_limits,
    guarded_clock,
    node_client_tls,
    node_tls,
    open_bus,
    registry,
)
from duemq.cluster.topics.own_logs import OwnLogs
from duemq.delay.api import imported_files, snapshots
from duemq.delay.api.control_socket import Control
from duemq.delay.api.internal_http import create_internal_app
from duemq.delay.api.peers import HttpPeers
from duemq.delay.node import Node
from duemq.delay.node_backend import NodeBackend
from duemq.delay.recovery.consistent_snapshot import freeze
from duemq.delay.recovery.replica_snapshot import SnapshotServer
from duemq.election.base import Member
from duemq.election.zookeeper.election import ZooKeeperElection
from duemq.model.errors import BadConfig
from duemq.storage.data_folder import SNAPSHOTS, Folder
from duemq.web.admission.admission import Admission
from duemq.web.probes import ReadinessCollector
from duemq.web.server import listen_on, serve_http, stop_on_signals, url_of

_EXPIRE_S = 30.0  # how often abandoned snapshots are removed


def _told_host(advertise: str, bound: str) -> str:
    """The host that proxies and other nodes use to reach this one. Raises BadConfig if there is none."""
    host = advertise.strip("[]") or bound
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if ":" in host or "/" in host:
            raise BadConfig(f"node.advertise = {advertise!r}: it must be a host without a port") from None
        return host  # a host name
    if (getattr(address, "ipv4_mapped", None) or address).is_unspecified:
        key = "node.advertise" if advertise else "node.listen"
        raise BadConfig(
            f"{key} = {host} stands for every address of this machine, and others cannot reach it by that: "
            "set node.advertise to the host name or address by which proxies and other nodes reach it"
        )
    return host


async def run_node(
    settings: Settings,
    worker: int | None = None,
    workers: int = 1,
    notifier: Notifier = Notifier(),  # noqa: B008  # a value
) -> None:
    """Run a delay node until SIGINT or SIGTERM. Raises Fatal if it cannot start.

    `worker` of `workers`: this process has part of the shards, and its name, folder and port differ from the others'.
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
        check_node_access(settings, listen)
        metrics = registry()
        tls, node_client_context = node_tls(settings, metrics, host), node_client_tls(settings)
        stop = stop_on_signals()
        systemd = await opened.enter_async_context(watchdog(notifier, stop.request))
        directory = await open_directory(settings, opened)
        identity = await shared_identity(directory, settings, stop, makes=True)
        assert identity is not None
        folder = Folder.open(data, identity=identity)
        opened.callback(folder.close)
        holds = None if worker is None else frozenset(range(worker, identity.shards, workers))
        me = Member(name, url_of(listener, host, secure=tls is not None), rack=settings.node.rack, holds=holds)
        election = ZooKeeperElection(directory, me, identity.shards, bound, settings.node.link_port)
        clock = guarded_clock(settings)

        async def checkpoint(shard: int, into: Path) -> None:
            await node.checkpoint(shard, into)

        served = SnapshotServer(folder.info.path / SNAPSHOTS, checkpoint)
        opened.push_async_callback(served.close)
        peers = HttpPeers(directory, name, settings.node.token, node_client_context)
        opened.push_async_callback(peers.close)
        tracing = await opened.enter_async_context(open_tracing(settings, "node", name, metrics))
        node = Node(
            folder,
            lambda: open_bus(settings, clock, identity.prefix),
            election,
            node_options(settings, alone=False, trims=False, holds=holds),
            metrics,
            clock,
            peers,
            [("snapshots", served.expire, _EXPIRE_S)],
            observer=observer_for(metrics, tracing),
            check_logs=OwnLogs(identity, directory.keep_topic_ids, settings.kafka.accept_topics).check,
        )
        admin = administration_of(node, clock)
        control = Control(folder.info.path, partial(freeze, node), node.recover, key_maker(admin))
        await opened.enter_async_context(control)
        backend = NodeBackend(node, settings.http.answer_timeout_ms / 1000)
        systemd.stuck, systemd.status = backend.stuck, lambda: backend.readiness().sentence
        metrics.register(ReadinessCollector(backend.readiness))
        more = [*snapshots.routes(served), *imported_files.routes(node)]
        admission = Admission(settings.http.max_requests, settings.http.max_inflight_bytes)
        app = create_internal_app(backend, metrics, settings.node.token, more, admission)
        await serve_http(
            app, listener, me.url, settings.http.shutdown_grace_s, stop, systemd.ready_after(node.ready.wait),
            beside(admin, node.run), limits=connection_limits(settings), tls=tls,
        )  # fmt: skip
