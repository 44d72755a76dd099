"""The connections of an HTTP server, with limits on their number and on how long each client may take.

A client has time limits for sending a request's head and body, and for reading the responses. A check every few seconds
closes connections over their limits, so a silent client costs other clients' requests nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from itertools import islice
from typing import Final, NamedTuple, Protocol

from duemq.background.loop import Loop
from duemq.web.request_id import RequestIds

log = logging.getLogger(__name__)

DRAINING: Final = "duemq.draining"  # key in a request's scope: true if the request came after the stop was requested
_BRIEF_S = 1.0  # a connection that has been idle or served for less than this is closed only if there is no other
_SEARCHED = 64  # the most served connections that are checked to find one that may be closed


class ConnectionLimits(NamedTuple):
    """`head_bytes`: the most bytes of one head. `unsent_bytes`: the most bytes of unread responses, and also of
    incomplete heads, each for all connections together.

    `keep_alive_s`: how long a connection may wait for its next request. `drain_s`: how long connections are still
    accepted after a stop was requested.
    """

    connections: int = 10_000
    head_bytes: int = 256 << 10
    head_s: float = 10.0
    body_s: float = 60.0
    write_s: float = 30.0
    unsent_bytes: int = 64 << 20
    keep_alive_s: float = 75.0
    drain_s: float = 0.0


class Connection(Protocol):
    """What `Connections` needs of a connection: see `HttpProtocol`. Times are in s, by the loop's clock."""

    transport: asyncio.Transport
    since: float
    head_since: float | None
    unread_since: float | None

    @property
    def has_asked(self) -> bool: ...
    @property
    def sends_body(self) -> bool: ...
    @property
    def can_ask_again(self) -> bool: ...
    def close_after_answer(self) -> None: ...


class Connections:
    """The connections of one server by their current activity. In each group, those that are in it longest come
    first."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.draining = False
        self.open_head_bytes = 0  # the bytes of all incomplete heads
        self.next_id = RequestIds()  # for answers to malformed requests
        self._new: OrderedDict[Connection, None] = OrderedDict()  # connections that have sent no request yet
        self._idle: OrderedDict[Connection, None] = OrderedDict()
        self._served: OrderedDict[Connection, None] = OrderedDict()
        self._unread: OrderedDict[Connection, int] = OrderedDict()  # each with its number of unsent bytes
        self.unsent = 0
        self._ended: Counter[str] = Counter()  # connections closed since the last check, by reason

    def __len__(self) -> int:
        return len(self._new) + len(self._idle) + len(self._served)

    def add(self, connection: Connection) -> None:
        """Add a new connection. If there are too many, one is closed, but never one that waits for the outcome of a
        change."""
        self._new[connection] = None
        if len(self) > self.limits.connections:
            self._end(self._least_needed(connection), "made room for a new one")

    def remove(self, connection: Connection) -> None:
        for group in (self._new, self._idle, self._served):
            group.pop(connection, None)
        self.reads(connection)

    def begin(self, connection: Connection) -> None:
        """Count a connection as served from now on."""
        self._new.pop(connection, None)
        self._idle.pop(connection, None)
        self._served[connection] = None
        self._served.move_to_end(connection)  # it is served already if this request was pipelined

    def finish(self, connection: Connection) -> None:
        """Count a connection as idle after its response."""
        if connection in self._served:
            del self._served[connection]
            self._idle[connection] = None

    def does_not_read(self, connection: Connection) -> None:
        """Record that a client does not read its response. If too many bytes are unsent, close the connections whose
        clients have not read for longest."""
        self.reads(connection)
        self._relieve()
        self._unread[connection] = size = connection.transport.get_write_buffer_size()
        self.unsent += size

    def reads(self, connection: Connection) -> None:
        self.unsent -= self._unread.pop(connection, 0)

    def failed(self, reason: str) -> None:
        """Count a connection whose TLS handshake failed, with the reason."""
        self._ended[f"no TLS handshake: {reason}"] += 1

    def drain(self) -> None:
        """Close each connection with its next response."""
        self.draining = True
        for connection in self._served:
            connection.close_after_answer()

    async def run(self) -> None:
        """Check the connections forever."""
        limits, time = self.limits, asyncio.get_running_loop().time

        async def turn() -> float:
            self.close_overdue(time())
            return min(limits.head_s, limits.body_s, limits.write_s, limits.keep_alive_s) / 2

        await Loop("connections", turn).run()

    def close_overdue(self, now: float) -> None:
        """Close the connections whose clients take too long or do not read their responses."""
        for connection in (*self._new, *self._idle, *self._served):
            if (reason := self._overdue(connection, now)) is not None:
                self._end(connection, reason)
        for connection in self._unread:
            self._unread[connection] = connection.transport.get_write_buffer_size()
        self.unsent = sum(self._unread.values())
        self._relieve()
        for reason, count in self._ended.items():
            log.info(
                "%d connections were closed: %s",
                count,
                reason,
                extra={"action": "http.connection", "reason": reason, "count": count},
            )
        self._ended.clear()

    def _least_needed(self, newcomer: Connection) -> Connection:
        """The connection to close for a new one: first those without a request yet and idle ones, then those whose
        clients do not read, then those whose clients can send their request again.
        """
        now = newcomer.since
        waiting = [next(iter(group)) for group in (self._new, self._idle) if group]
        for connection in waiting:
            if now - connection.since >= _BRIEF_S:
                return connection
        for connection in self._unread:
            if connection.unread_since is not None and now - connection.unread_since >= _BRIEF_S:
                return connection
            break
        for connection in islice(self._served, _SEARCHED):
            if now - connection.since < _BRIEF_S:
                break
            if connection.can_ask_again:
                return connection
        return next((connection for connection in waiting if connection is not newcomer), newcomer)

    def _overdue(self, connection: Connection, now: float) -> str | None:
        """What the client did not do in time; None if it is not late."""
        limits, wait_s = self.limits, now - connection.since
        if connection.unread_since is not None and now - connection.unread_since > limits.write_s:
            return "the client does not read its answer"
        if connection.sends_body:
            return "the client does not send its body" if wait_s > limits.body_s else None
        if connection in self._served:
            return None
        if not connection.has_asked:
            return "the client sends no request" if wait_s > limits.head_s else None
        if connection.head_since is not None:
            start_s = max(connection.head_since, connection.since)
            return "the client does not complete its request" if now - start_s > limits.head_s else None
        return "the client sends no further request" if wait_s > limits.keep_alive_s else None

    def _relieve(self) -> None:
        """Close the connections whose clients have not read for longest, until the unsent bytes are within their
        limit."""
        while self._unread and self.unsent > self.limits.unsent_bytes:
            self._end(next(iter(self._unread)), "the client does not read its answer, and too much is unsent")

    def _end(self, connection: Connection, reason: str) -> None:
        self.remove(connection)
        self._ended[reason] += 1
        connection.transport.abort()
