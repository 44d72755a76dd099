"""Detects dead nodes. Nodes keep connections to one another, because the kernel closes these as soon as a process dies.

    connection to a peer ends ──▶ connect once more ──▶ refused, or another process answers ──▶ it is dead: remove it
                                                   ├──▶ the peer answers ──▶ only the connection broke
                                                   └──▶ silence ──▶ proves nothing: its session decides

A peer can be declared dead only if it has answered at its address before, so a wrong address does no harm. If a live
peer is declared dead, this costs a moment but never correctness, because the bus fences a shard's old master.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import cast

from duemq.background.loop import Loop
from duemq.model.errors import BadConfig

log = logging.getLogger(__name__)

_ANSWER_S = 1.0
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.01, 1.0
_GREETING_LIMIT = 512
_MAX_CALLERS = 1024  # many times the nodes in a cluster: other clients must not use up all descriptors


@dataclass(frozen=True, slots=True)
class Peer:
    """`address`: HOST:PORT. `born`: see `Znode`, for the peer's entry. `instance`: identifies the peer's process."""

    name: str
    address: str
    born: int
    instance: str


class ConnectionOutcome(Enum):
    """The outcome of a connection to a peer."""

    ENDED = auto()  # the peer answered, and the connection ended later
    BROKEN = auto()  # it was accepted, and ended before an answer
    SILENT = auto()  # no answer in time, or unreachable
    REFUSED = auto()  # no process listens there
    STRANGER = auto()  # another process answered


class FailureDetector:
    """Detects dead peers by open connections, called links. It accepts links from all peers, and connects to those that
    it is asked to follow.

    `on_dead` is awaited for a peer whose process has died, repeatedly, until the peer is no longer followed.
    """

    def __init__(self, name: str, instance: str, on_dead: Callable[[Peer], Awaitable[None]]) -> None:
        self.greeting = _greeting(name, instance)
        self._on_dead = on_dead
        self._server: asyncio.Server | None = None
        self.callers: set[asyncio.Transport] = set()
        self._following: dict[Peer, asyncio.Task[None]] = {}

    async def open(self, host: str, port: int) -> int:
        """Listen at this address only (port 0 = any port); return the port. Raises BadConfig."""
        try:
            self._server = await asyncio.get_running_loop().create_server(lambda: _Greeter(self), host, port)
        except OSError as error:
            raise BadConfig(f"node.link_port = {port}: cannot listen at {host}: {error.strerror}") from error
        return int(self._server.sockets[0].getsockname()[1])

    def follow(self, peers: Iterable[Peer]) -> None:
        """From now on follow these peers, and no others."""
        targets = set(peers)
        for peer in self._following.keys() - targets:
            self._following.pop(peer).cancel()
        for peer in targets - self._following.keys():
            self._following[peer] = asyncio.create_task(self._follow(peer), name=f"link-{peer.name}")

    async def close(self) -> None:
        """Idempotent."""
        tasks = list(self._following.values())
        self.follow(())
        if self._server is not None:
            self._server.close()
            for caller in list(self.callers):
                caller.abort()
            await self._server.wait_closed()
            self._server = None
        if tasks:
            await asyncio.wait(tasks)

    async def _follow(self, peer: Peer) -> None:
        met, warned, pause_s, clock = False, False, 0.0, asyncio.get_running_loop().time

        async def turn() -> float:
            nonlocal met, warned, pause_s
            started = clock()
            talk = await talk_to(peer)
            # Connect again at once after a connection ends, so that a death is noticed at once. After failures, wait
            # longer.
            lasted = talk is ConnectionOutcome.ENDED and clock() - started > _LAST_PAUSE_S
            pause_s = 0.0 if lasted else min(max(2 * pause_s, _FIRST_PAUSE_S), _LAST_PAUSE_S)
            if talk is ConnectionOutcome.ENDED:
                met = True
            elif met and talk in (ConnectionOutcome.REFUSED, ConnectionOutcome.STRANGER):
                await self._on_dead(peer)
            elif talk is ConnectionOutcome.STRANGER and not warned:
                warned = True
                log.warning(
                    "node %s is not the one that answers at %s: its death will be noticed late",
                    peer.name, peer.address, extra={"action": "link", "node": peer.name},
                )  # fmt: skip
            return pause_s

        await Loop("link", turn, peer.name).run()


class _Greeter(asyncio.Protocol):
    """Sends a greeting and then nothing more: only the open connection matters."""

    def __init__(self, detector: FailureDetector) -> None:
        self._detector = detector

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass
        if len(self._detector.callers) >= _MAX_CALLERS:
            transport.abort()  # a peer would see a broken connection and try again
            return
        _keep_alive(transport)
        self._detector.callers.add(transport)
        transport.write(self._detector.greeting)

    def connection_lost(self, exc: Exception | None) -> None:
        self._detector.callers.discard(self._transport)


async def talk_to(peer: Peer, stay: bool = True) -> ConnectionOutcome:
    """Connect and read the greeting. With `stay`, wait until the connection ends."""
    host, _, port = peer.address.rpartition(":")
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), port, limit=_GREETING_LIMIT)
    except ConnectionRefusedError:
        return ConnectionOutcome.REFUSED
    except ConnectionResetError:
        return ConnectionOutcome.BROKEN
    except (TimeoutError, OSError):
        return ConnectionOutcome.SILENT
    try:
        _keep_alive(writer.transport)
        async with asyncio.timeout(_ANSWER_S):
            greeting = await reader.readline()
        if not greeting.endswith(b"\n"):
            return ConnectionOutcome.BROKEN
        if greeting != _greeting(peer.name, peer.instance):
            return ConnectionOutcome.STRANGER
        with suppress(OSError):
            while stay and await reader.read(_GREETING_LIMIT):
                pass  # a peer sends nothing more; if data comes, it is not kept in memory
        return ConnectionOutcome.ENDED
    except TimeoutError:
        return ConnectionOutcome.SILENT
    except OSError:
        return ConnectionOutcome.BROKEN
    except ValueError:  # longer than any greeting
        return ConnectionOutcome.STRANGER
    finally:
        writer.transport.abort()


def address_of(host: str, port: int) -> str:
    """HOST:PORT, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _greeting(name: str, instance: str) -> bytes:
    return f"duemq-link 1 {name} {instance}\n".encode()


def _keep_alive(transport: asyncio.BaseTransport) -> None:
    """Enable TCP keep-alive, so that connections to a machine that vanished do not accumulate."""
    its_socket = transport.get_extra_info("socket")
    its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            its_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
