"""Many connections held open by one thread, none of which ever reads."""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from tests.abuse.base import Abuser, first_bytes

_TURN_S = 0.05
_TRICKLE_S = 1.0
_RECEIVE_BYTES = 4096  # the kernel holds little: what is not read stays with the server
_GONE = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_RESET = struct.pack("ii", 1, 0)  # closes without lingering: thousands of ports would be waiting otherwise


@dataclass(slots=True)
class _Held:
    sock: socket.socket
    number: int
    since: float  # monotonic s
    open: bool = False
    said: int = 0


class Crowd:
    """Holds as many connections as it should; one that ends is opened again.

    A server that ends a connection cannot say so to a client with a full buffer, so each is given up after `life_s`.
    `greeting`: what the n-th says once it is open. `trickle`: what each says as its n-th word, one a second.
    """

    def __init__(
        self,
        abuser: Abuser,
        count: int,
        greeting: Callable[[int], bytes] = lambda number: b"",
        trickle: Callable[[int], bytes] | None = None,
        life_s: float = 45.0,
    ) -> None:
        self._abuser, self._count, self._greeting, self._trickle = abuser, count, greeting, trickle
        self._life_s, self._number, self._open_now = life_s, 0, 0
        self._held: dict[int, _Held] = {}  # by file descriptor, the oldest first

    def run(self, stop: Event) -> None:
        looked_at = time.monotonic()
        per_s, allowed, trickle_at = self._count / self._abuser.sizes.reopen_s, 0.0, looked_at + _TRICKLE_S
        with select.epoll() as events:
            try:
                while not stop.wait(_TURN_S):
                    now = time.monotonic()
                    self._give_up(now)
                    allowed, looked_at = min(allowed + (now - looked_at) * per_s, self._count), now
                    for _ in range(min(self._count - len(self._held), int(allowed))):
                        self._open(events, now)
                        allowed -= 1
                    for fd, event in events.poll(0, self._count):
                        self._hear(events, fd, event)
                    if self._trickle is not None and now >= trickle_at:
                        trickle_at += _TRICKLE_S
                        self._say_more()
            finally:
                for held in self._held.values():
                    held.sock.close()

    def _open(self, events: select.epoll, now: float) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._abuser.counts["tried"] += 1
        outcome = sock.connect_ex((self._abuser.host, self._abuser.port))
        if outcome not in (0, errno.EINPROGRESS):
            self._abuser.counts["refused"] += 1
            sock.close()
            return
        self._held[sock.fileno()] = _Held(sock, self._number, now)
        self._number += 1
        events.register(sock, select.EPOLLOUT | _GONE)

    def _hear(self, events: select.epoll, fd: int, event: int) -> None:
        held, counts = self._held[fd], self._abuser.counts
        if event & _GONE:
            self._abuser.count_answer(first_bytes(held.sock))
            self._drop(held)
            return
        events.modify(fd, _GONE)
        held.open = True
        self._open_now += 1
        counts["opened"] += 1
        counts["most at a time"] = max(counts["most at a time"], self._open_now)
        self._say(held, self._greeting(held.number))

    def _say_more(self) -> None:
        assert self._trickle is not None
        for held in self._held.values():
            if held.open:
                self._say(held, self._trickle(held.said))
                held.said += 1

    def _say(self, held: _Held, text: bytes) -> None:
        try:
            held.sock.send(text)
        except OSError:
            pass  # the next look finds it gone

    def _give_up(self, now: float) -> None:
        while self._held and (oldest := next(iter(self._held.values()))).since + self._life_s < now:
            self._abuser.counts["given up"] += 1
            self._drop(oldest)

    def _drop(self, held: _Held) -> None:
        del self._held[held.sock.fileno()]
        self._open_now -= held.open
        held.sock.close()
