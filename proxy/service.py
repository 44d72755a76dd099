"""Everything in one process: a node on the embedded bus, and the HTTP API in front of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn
from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry

from duemq.bus.base import wall_clock
from duemq.bus.embedded import EmbeddedBus
from duemq.delay.local import LocalGateway
from duemq.delay.master import Pace
from duemq.delay.node import Node, NodeOptions
from duemq.election.single import SingleElection
from duemq.model.errors import BadConfig
from duemq.proxy.app import create_app
from duemq.proxy.config import Settings
from duemq.proxy.ingress import Ingress
from duemq.storage.folder import Folder

log = logging.getLogger(__name__)

Companion = Callable[[str, asyncio.Event], Awaitable[None]]  # gets the server's URL and the stop event


def node_options(settings: Settings) -> NodeOptions:
    delivery, storage = settings.delivery, settings.storage
    return NodeOptions(
        pace=Pace(
            max_messages=delivery.max_cycle_messages,
            max_bytes=delivery.max_cycle_bytes,
            max_attempts=delivery.max_attempts,
            retry_ms=delivery.retry_delays,
            dead_letter_topic=settings.topics.dead_letter,
        ),
        gather_s=delivery.gather_ms / 1000,
        target_partitions=settings.topics.partitions,
        cache_bytes=storage.cache_bytes,
        write_buffer_bytes=storage.write_buffer_bytes,
        flush_interval_s=storage.flush_interval_s,
        flush_bytes=storage.flush_bytes,
        history_s=storage.history_retention / 1000,
        retention_s=settings.embedded.retention / 1000,
        min_free_bytes=storage.min_free_bytes,
    )


async def serve(settings: Settings, companion: Companion | None = None) -> None:
    """Serve until SIGINT or SIGTERM. Raises Fatal where the start or the books are wrong.

    `companion` runs beside the server once it is ready, such as the demonstration of `make run`.
    """
    listener = _listen(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    folder = Folder.open(settings.data, settings.shards if "shards" in settings.model_fields_set else None)
    try:
        registry = CollectorRegistry()
        for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
            registry.register(collector)
        path, tail = folder.info.path / "bus", settings.embedded.tail_bytes
        node = Node(
            folder,
            lambda: EmbeddedBus.open(path, tail_bytes=tail, clock=wall_clock),
            SingleElection(folder.info.shards),
            node_options(settings),
            registry,
            wall_clock,
        )
        gateway = LocalGateway(node, settings.http.answer_timeout_ms / 1000)
        app = create_app(gateway, Ingress(settings.ingress_limits()), settings.http, registry, wall_clock, stop)
        server = _Server(
            uvicorn.Config(
                app, loop="uvloop", http="httptools", ws="none", lifespan="off", log_config=None, access_log=False,
                timeout_graceful_shutdown=int(settings.http.shutdown_grace_s), server_header=False, date_header=False,
                proxy_headers=False,
            )
        )  # fmt: skip
        _tune_interpreter()
        url = (
            f"http://{settings.host if ':' not in settings.host else f'[{settings.host}]'}:{listener.getsockname()[1]}"
        )
        await _run(node, server, listener, stop, companion, url)
    finally:
        folder.close()


async def _run(
    node: Node, server: _Server, listener: socket.socket, stop: asyncio.Event, companion: Companion | None, url: str
) -> None:
    """The front door closes first, then the node: no request meets a shard that is gone."""
    shut = asyncio.Event()

    async def door() -> None:
        await server.serve(sockets=[listener])
        shut.set()

    async def porter() -> None:
        await stop.wait()
        log.info("duemq stops", extra={"action": "stop"})
        server.should_exit = True

    async def beside() -> None:
        await node.ready.wait()
        log.info("duemq serves %s", url, extra={"action": "serve", "url": url})
        if companion is not None:
            await companion(url, stop)

    async with asyncio.TaskGroup() as group:
        helper = group.create_task(beside(), name="companion")
        group.create_task(porter(), name="porter")
        group.create_task(door(), name="http")
        try:
            await node.run(shut)
        finally:
            stop.set()
            helper.cancel()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the service's: they set its stop event."""
        yield


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise BadConfig(
            f"listen: cannot listen on {settings.listen}: {error.strerror}. Choose another address with --listen."
        ) from error
    return listener


def _tune_interpreter() -> None:
    """Fewer pauses: batches of thousands of short-lived objects would start a full collection every few cycles."""
    # A thread that comes back from a disk sync waits this long at most for the interpreter (default 5 ms).
    sys.setswitchinterval(0.0005)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
