"""An HTTP endpoint in a separate process. It records the arrival time of each message."""

import asyncio
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from duemq.bench.base.session import now_ms
from duemq.bench.base.workers import WorkerLink
from duemq.bench.clients.payloads import SEQUENCE
from duemq.bench.clients.reader import ReceivedRecords
from duemq.dev.servers.ports import is_open
from duemq.dev.servers.process import wait_for

HOOK, PLAIN, ERROR, SLOW = "/hook", "/plain", "/error", "/slow"
"""The paths: HOOK answers 204 and counts; PLAIN answers 204 and does not count; ERROR answers 500; SLOW answers 204
after 30 s."""
_SLOW_S = 30.0
_LISTEN_WITHIN_S = 30.0
_DONE = b"HTTP/1.1 204 No Content\r\n\r\n"
_FAILED = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"
_END = b"\r\n\r\n"


@dataclass(slots=True)
class _Log:
    link: WorkerLink
    rows: list[tuple[int, int, float]] = field(default_factory=list)
    connections: set[asyncio.Transport] = field(default_factory=set)

    def add(self, head: bytes, body: bytes) -> None:
        self.rows.append((int(body[SEQUENCE]), int(_header(head, b"duemq-due")), now_ms()))
        self.link.progress(len(self.rows))

    def received(self) -> ReceivedRecords:
        columns = np.array(self.rows, np.float64).reshape(-1, 3)
        seq, due = columns[:, 0].astype(np.int64), columns[:, 1].astype(np.int64)
        return ReceivedRecords(seq, due, columns[:, 2], np.zeros(len(seq), np.int64), [], len(seq), 0)


class _Connection(asyncio.Protocol):
    """A minimal HTTP/1.1 server: enough for clients that send header names in lower case, and bodies with a length."""

    def __init__(self, log: _Log) -> None:
        self._log = log
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass
        self._log.connections.add(self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._log.connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(_END)) >= 0:
            head, begin = self._buffer[:end], end + len(_END)
            length = int(_header(head, b"content-length") or 0)
            if len(self._buffer) < begin + length:
                return
            body, self._buffer = self._buffer[begin : begin + length], self._buffer[begin + length :]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1].decode()
        if path == SLOW:
            asyncio.get_running_loop().call_later(_SLOW_S, self._write, _DONE)
            return
        if path == HOOK:
            self._log.add(head, body)
        self._write(_FAILED if path == ERROR else _DONE)

    def _write(self, answer: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(answer)


def _header(head: bytes, name: bytes) -> bytes:
    """The value of a header; empty if it is missing."""
    begin = head.find(b"\r\n" + name + b": ")
    if begin < 0:
        return b""
    begin += len(name) + 4
    end = head.find(b"\r\n", begin)
    return head[begin:] if end < 0 else head[begin:end]


def until_listening(port: int) -> None:
    """Wait until the sink listens. Raises LocalError."""
    wait_for(lambda: is_open(port), "the sink", _LISTEN_WITHIN_S)


async def listen(link: WorkerLink, port: int) -> ReceivedRecords:
    """Answer requests until the request to stop. Returns the messages that HOOK received, in order."""
    log = _Log(link)
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(log), "127.0.0.1", port, backlog=1_000)
    await link.stopped.wait()
    server.close()
    for connection in tuple(log.connections):
        connection.abort()
    await server.wait_closed()
    await asyncio.sleep(0)  # sockets are closed only in the next turn of the loop
    return log.received()
