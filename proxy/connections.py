"""The connections of an HTTP server, bounded: how many, how large a head may be, and how long the other side may take.

Each has a limit of time for sending its head and its body, and for reading the answers. A look every few seconds ends
those that are over it. So a client that is silent costs nothing per request of all others.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

log = logging.getLogger(__name__)


class ConnectionLimits(NamedTuple):
    """`head_bytes`: of one head. `unsent_bytes`: of answers that clients have not read, all connections together."""

    connections: int = 10_000
    head_bytes: int = 256 << 10
    head_s: float = 10.0
    body_s: float = 60.0
    write_s: float = 30.0
    unsent_bytes: int = 64 << 20


class Connection(HttpToolsProtocol):
    """One of them. A server makes subclasses of it, with the limits as an attribute of the class."""

    limits = ConnectionLimits()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.unread_since: float | None = None  # since when more is unsent than the transport likes to hold
        self._head = 0  # bytes of a head that is not complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # The parser sets the method when a head is complete.
        if self.scope is None or "method" in self.scope:
            self._head = 0
            return
        # What came with the first part may have been another request's.
        self._head += len(data) if self._head else 1
        if self._head > self.limits.head_bytes and not self.transport.is_closing():
            self.transport.write(STATUS_LINE[431] + b"content-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()

    def pause_writing(self) -> None:
        self.unread_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.unread_since = None
        super().resume_writing()


def bounded(limits: ConnectionLimits) -> type[Connection]:
    """The class of a server's connections."""
    return type("BoundedConnection", (Connection,), {"limits": limits})


class Watch:
    """Ends connections whose other side takes too long, or does not read what it asked for."""

    def __init__(self, connections: set[Any], limits: ConnectionLimits) -> None:
        self._connections, self._limits = connections, limits
        # The last request that each had begun, and since when it stands there.
        self._since: dict[Connection, tuple[Any, bool, float]] = {}

    async def run(self) -> None:
        every_s = min(self._limits.head_s, self._limits.body_s, self._limits.write_s) / 2
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(every_s)
            self.look(loop.time())

    def look(self, now: float) -> None:
        before, self._since = self._since, {}
        unread: list[tuple[float, Connection]] = []
        for connection in list(self._connections):
            cycle = connection.cycle
            idle = cycle is None or cycle.response_complete
            known = before.get(connection)
            since = known[2] if known is not None and known[0] is cycle and known[1] == idle else now
            self._since[connection] = cycle, idle, since
            if connection.unread_since is not None:
                unread.append((connection.unread_since, connection))
            if (reason := self._overdue(connection, now, since, idle)) is not None:
                self._end(connection, reason)
        self._relieve(unread)

    def _overdue(self, connection: Connection, now: float, since: float, idle: bool) -> str | None:
        """What the other side has not done in its time."""
        limits, unread_since = self._limits, connection.unread_since
        if unread_since is not None and now - unread_since > limits.write_s:
            return "does not read its answer"
        if idle and now - since > limits.head_s:
            return "sends no request"
        if not idle and connection.cycle.more_body and now - since > limits.body_s:
            return "does not send its body"
        return None

    def _relieve(self, unread: list[tuple[float, Connection]]) -> None:
        """End those that have not read for longest, until what is unsent is within its bound."""
        sizes = [connection.transport.get_write_buffer_size() for _, connection in unread]
        total = sum(sizes)
        for (_, connection), size in sorted(zip(unread, sizes, strict=True), key=lambda item: item[0][0]):
            if total <= self._limits.unsent_bytes:
                break
            self._end(connection, "does not read its answer, and too much is unsent")
            total -= size

    def _end(self, connection: Connection, reason: str) -> None:
        log.info("a connection %s: it is closed", reason, extra={"action": "http.connection", "reason": reason})
        connection.transport.abort()
