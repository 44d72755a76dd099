"""Runs an HTTP server and its background work in one process: they become ready together and are stopped in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.types import ASGIApp

from duemq.model.errors import BadConfig
from duemq.web.connection.connections import ConnectionLimits, Connections
from duemq.web.connection.protocol import connection_class, over_tls
from duemq.web.open_files import connections_within, raise_limit

if TYPE_CHECKING:
    from duemq.web.tls.server_tls import ServerTls

log = logging.getLogger(__name__)

_UNSENT_BYTES = 64 << 10  # how much the kernel buffers for a client before sending

Companion = Callable[[str, asyncio.Event], Awaitable[None]]  # called with the server's URL and the stop event


def listen_on(address: str, *, shared: bool = False) -> socket.socket:
    """A socket bound to HOST:PORT. `shared`: other processes bind it, too, and the kernel spreads the connections over
    the processes."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Without this, Linux would buffer up to 4 MiB for each client that does not read. Bytes in flight are not
        # limited.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        listener.bind((host, int(port)))
    except OSError as error:
        listener.close()
        raise BadConfig(
            f"listen: cannot listen on {address}: {error.strerror}. Choose another address with --listen."
        ) from error
    return listener


def url_of(listener: socket.socket, host: str = "", *, secure: bool = False) -> str:
    """The server's URL. `host`: the host in it, if that differs from the bound address. `secure`: the server uses
    TLS."""
    bound, port = listener.getsockname()[:2]
    host = host or bound
    return f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


class ServerStop(asyncio.Event):
    """Is set when the server must close. In a server that `drains`, a request to stop first sets only `request`, and
    this event is set later."""

    def __init__(self) -> None:
        super().__init__()
        self.request = asyncio.Event()
        self.drains = False

    def ask(self) -> None:
        """Request a stop. A second request stops the server without draining."""
        if self.request.is_set() or not self.drains:
            self.set()
        self.request.set()

    def set(self) -> None:
        self.request.set()
        super().set()


def stop_on_signals() -> ServerStop:
    """SIGTERM requests a stop; SIGINT stops without draining, because a person is waiting after Ctrl-C."""
    stop, loop = ServerStop(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.ask)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    return stop


async def serve_http(
    app: ASGIApp,
    listener: socket.socket,
    url: str,
    grace_s: float,
    stop: ServerStop,
    ready: Callable[[], Awaitable[object]],
    work: Callable[[asyncio.Event], Awaitable[None]],
    companion: Companion | None = None,
    limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008  # a value
    tls: ServerTls | None = None,
    console: str = "",
) -> None:
    """Serve until `stop`. `work` runs until its event is set; `ready` returns once the work can be used.

    After a stop was requested, the server is no longer ready, but it goes on serving for `limits.drain_s`, so that a
    load balancer has stopped sending requests when the server closes. The server closes before the work ends, because
    requests need the work. `console`: the console's path, if there is a console.
    """
    limits = limits._replace(connections=connections_within(raise_limit(), limits.connections))
    connections = Connections(limits)
    shut = asyncio.Event()
    kind = connection_class(connections)
    protocol: Any = kind if tls is None else over_tls(kind, tls.context)  # uvicorn only calls it
    server = _Server(
        uvicorn.Config(
            app, loop="uvloop", http=protocol, ws="none", lifespan="off", log_config=None, access_log=False,
            timeout_graceful_shutdown=math.ceil(grace_s), server_header=False, date_header=False,
            proxy_headers=False, timeout_keep_alive=math.ceil(limits.keep_alive_s),
        )
    )  # fmt: skip
    tune_interpreter()

    async def serve() -> None:
        await server.serve(sockets=[listener])
        shut.set()

    async def drain_and_stop() -> None:
        await stop.request.wait()
        log.info("duemq stops", extra={"action": "stop"})
        connections.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.drain_s):
                await stop.wait()
        stop.set()
        server.should_exit = True

    async def announce() -> None:
        await ready()
        stop.drains = limits.drain_s > 0
        pages = f" (console: {url}{console})" if console else ""
        log.info("duemq serves %s%s", url, pages, extra={"action": "serve", "url": url})
        if companion is not None:
            await companion(url, stop)

    async with asyncio.TaskGroup() as group:
        helper = group.create_task(announce(), name="companion")
        group.create_task(drain_and_stop(), name="drain and stop")
        group.create_task(serve(), name="http")
        watches = [group.create_task(connections.run(), name="connections")]
        if tls is not None:
            watches.append(group.create_task(tls.watch(), name="certificates"))
        try:
            await work(shut)
        finally:
            stop.set()
            helper.cancel()
            for watch in watches:
                watch.cancel()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the service: they set its stop event."""
        yield


def tune_interpreter() -> None:
    """Avoid pauses: batches of thousands of short-lived objects would start a full garbage collection every few cycles,
    and each collection takes 80 ms in a process that has imported everything."""
    # A thread that returns from a disk sync waits at most this long for the interpreter (default 5 ms).
    sys.setswitchinterval(0.0005)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
