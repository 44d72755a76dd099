"""An HTTP server and the work behind it, as one process: ready together, stopped in order."""

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
from starlette.types import ASGIApp

from duemq.model.errors import BadConfig
from duemq.proxy.connections import ConnectionLimits, Watch, bounded

log = logging.getLogger(__name__)

Companion = Callable[[str, asyncio.Event], Awaitable[None]]  # gets the server's URL and the stop event


def listen_on(address: str, *, shared: bool = False) -> socket.socket:
    """A socket bound to HOST:PORT. `shared`: other processes bind it as well, and the kernel spreads connections."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, int(port)))
    except OSError as error:
        listener.close()
        raise BadConfig(
            f"listen: cannot listen on {address}: {error.strerror}. Choose another address with --listen."
        ) from error
    return listener


def url_of(listener: socket.socket, host: str = "") -> str:
    """How others reach it; `host` where that is not the one it is bound to."""
    bound, port = listener.getsockname()[:2]
    host = host or bound
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def stop_on_signals() -> asyncio.Event:
    """An event that SIGINT and SIGTERM set."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def serve_http(
    app: ASGIApp,
    listener: socket.socket,
    url: str,
    grace_s: float,
    stop: asyncio.Event,
    ready: Callable[[], Awaitable[object]],
    work: Callable[[asyncio.Event], Awaitable[None]],
    companion: Companion | None = None,
    limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008  # a value
) -> None:
    """Serve until `stop`. `work` runs until the event it gets is set; `ready` returns once it can be used.

    The front door closes first, then the work: no request meets something that is gone.
    """
    shut = asyncio.Event()
    server = _Server(
        uvicorn.Config(
            app, loop="uvloop", http=bounded(limits), ws="none", lifespan="off", log_config=None, access_log=False,
            timeout_graceful_shutdown=int(grace_s), server_header=False, date_header=False, proxy_headers=False,
        )
    )  # fmt: skip
    _tune_interpreter()

    async def door() -> None:
        await server.serve(sockets=[listener])
        shut.set()

    async def porter() -> None:
        await stop.wait()
        log.info("duemq stops", extra={"action": "stop"})
        server.should_exit = True

    async def beside() -> None:
        await ready()
        log.info("duemq serves %s", url, extra={"action": "serve", "url": url})
        if companion is not None:
            await companion(url, stop)

    async with asyncio.TaskGroup() as group:
        helper = group.create_task(beside(), name="companion")
        group.create_task(porter(), name="porter")
        group.create_task(door(), name="http")
        watch = group.create_task(Watch(server.server_state.connections, limits).run(), name="connections")
        try:
            await work(shut)
        finally:
            stop.set()
            helper.cancel()
            watch.cancel()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the service's: they set its stop event."""
        yield


def _tune_interpreter() -> None:
    """Fewer pauses: batches of thousands of short-lived objects would start a full collection every few cycles."""
    # A thread that comes back from a disk sync waits this long at most for the interpreter (default 5 ms).
    sys.setswitchinterval(0.0005)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
