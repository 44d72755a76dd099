"""Notifications to systemd: datagrams to the socket in NOTIFY_SOCKET (see sd_notify(3))."""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import MutableMapping
from dataclasses import dataclass
from mmap import mmap
from time import monotonic

log = logging.getLogger(__name__)

_SLOT = struct.Struct("=dB")  # per worker: when it was last healthy (s, monotonic), and whether it is ready
_SLOT_BYTES = 16


class Board:
    """The state that the processes of one service share, in memory that is created before the fork."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._memory = mmap(-1, workers * _SLOT_BYTES)

    def write(self, worker: int, well_at: float, *, ready: bool) -> None:
        _SLOT.pack_into(self._memory, worker * _SLOT_BYTES, well_at, ready)

    def _slots(self) -> list[tuple[float, int]]:
        return [_SLOT.unpack_from(self._memory, worker * _SLOT_BYTES) for worker in range(self._workers)]

    def all_ready(self) -> bool:
        return all(ready for _, ready in self._slots())

    def all_well_since(self, then: float) -> bool:
        return min(well_at for well_at, _ in self._slots()) >= then


@dataclass(frozen=True, slots=True)
class Notifier:
    """Notifies systemd for one process of a service. `watchdog_s`: how often systemd expects a ping; None: never.

    Without an `address` nothing is sent.
    """

    address: str = ""
    watchdog_s: float | None = None
    board: Board | None = None
    worker: int = 0

    @classmethod
    def of(cls, environment: MutableMapping[str, str], workers: int = 1) -> Notifier:
        """The notifier for systemd's variables, which are then removed: they are not meant for child processes."""
        address = environment.pop("NOTIFY_SOCKET", "")
        watchdog_us = environment.pop("WATCHDOG_USEC", "")
        meant = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        pings = meant and watchdog_us.isdecimal() and int(watchdog_us) > 0
        watchdog_s = int(watchdog_us) / 1_000_000 if pings else None
        return cls(address, watchdog_s, Board(workers) if address else None)

    def of_worker(self, worker: int | None) -> Notifier:
        return Notifier(self.address, self.watchdog_s, self.board, worker or 0)

    def tell(self, *assignments: str) -> None:
        """Send assignments such as READY=1. A failure is logged, not raised: systemd notices a missing message."""
        if not self.address:
            return
        # A leading @ means the abstract namespace.
        address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(assignments).encode(), address)
        except OSError as error:
            log.warning("systemd could not be notified: %s", error, extra={"action": "notify"})

    def record(self, *, ready: bool) -> None:
        """Record that this process is healthy now."""
        assert self.board is not None
        self.board.write(self.worker, monotonic(), ready=ready)
