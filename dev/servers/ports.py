"""Ports that stay free while a server is down."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable
from contextlib import suppress

from duemq.dev.servers.errors import LocalError

HOST = "127.0.0.1"
_RANGE = range(20_000, 32_000)  # below the ephemeral ports: no connection takes a port while its server is down
_own_ports: set[int] = set()


def free_port() -> int:
    """A free port that was not returned before in this process."""
    for port in random.sample(_RANGE, 200):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            if port not in _own_ports:
                _own_ports.add(port)
                return port
    raise LocalError("200 ports in a row are taken")


def is_open(port: int) -> bool:
    """Whether a server listens on this port."""
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


def addresses(ports: Iterable[int]) -> str:
    """HOST:PORT for each port, separated by commas."""
    return ",".join(f"{HOST}:{port}" for port in ports)
