"""The base of all abusers: the server they abuse, their size, and their counters."""

from __future__ import annotations

import socket
from collections import Counter
from dataclasses import asdict, dataclass, field
from threading import Event
from typing import ClassVar

FAT_TOPIC = "abuse.fat"  # holds more than a client that does not read can be sent
_ANSWER_BYTES = 64
_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of each kind there is at a time. `reopen_s`: a crowd opens as many connections as it has in so long."""

    idle: int = 5_000
    streams: int = 2_000
    polls: int = 500
    slow_heads: int = 200
    head_bytes: int = 100 << 20
    batch_bytes: int = 32 << 20
    topics_per_minute: int = 1_000
    reopen_s: float = 10.0

    def scaled(self, share: float) -> Sizes:
        """This share of each size, one at least, in the same time."""
        sizes = asdict(self)
        reopen_s = sizes.pop("reopen_s")
        return Sizes(**{name: max(int(size * share), 1) for name, size in sizes.items()}, reopen_s=reopen_s)

    @property
    def files(self) -> int:
        """File descriptors that all of it takes, with some to spare."""
        return self.idle + self.streams + self.polls + self.slow_heads + 200


@dataclass(slots=True)
class Abuser:
    """One kind of abuse of the server at `host`:`port`. A kind has one method, which runs until it is told to stop.

    `topic` is the honest client's. `counts`: the attempts, and the server's reactions: by the status of an answer,
    `closed` without one, or `cut off` during sending.
    """

    side_by_side: ClassVar[int] = 1  # how many of them there are

    host: str
    port: int
    topic: str
    sizes: Sizes
    seed: int
    counts: Counter[str] = field(default_factory=Counter)

    def run(self, stop: Event) -> None:
        raise NotImplementedError

    def head(self, method: str, path: str, *more: str) -> bytes:
        """A whole head of a request, with these header lines."""
        lines = (f"{method} {path} HTTP/1.1", f"Host: {self.host}:{self.port}", *more, "", "")
        return "\r\n".join(lines).encode()

    def connect(self) -> socket.socket:
        """A connection that waits a minute for the server. Raises OSError."""
        return socket.create_connection((self.host, self.port), _WITHIN_S)

    def count_answer(self, answer: bytes) -> None:
        """`answer`: its first bytes, empty if there is none."""
        status = answer[9:12].decode(errors="replace") if answer.startswith(b"HTTP/1.") else "closed"
        self.counts[status] += 1


def first_bytes(sock: socket.socket) -> bytes:
    """The answer's status; empty if the connection ended without one."""
    try:
        return sock.recv(_ANSWER_BYTES)
    except OSError:
        return b""
