"""A real server with few files: connections that do nothing take none from the stores."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack

from duemq.web.open_files import raise_limit
from tests.e2e.server import DUEMQ, Server, wait_for

_FILES, _IDLE = 256, 400


def limited(server: Server, soft: int, hard: int) -> Server:
    server.command = ["sh", "-c", f'ulimit -S -n {soft} && ulimit -H -n {hard} && exec "$@"', "sh", DUEMQ]
    return server


def test_idle_connections_do_not_stop_the_deliveries(new_server: Callable[..., Server]) -> None:
    assert raise_limit() > _IDLE + 200  # for this side of the connections
    server = limited(new_server("--set", "storage.flush_interval_s=0.1"), _FILES, _FILES).start()
    with ExitStack() as opened:
        for number in range(_IDLE):
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            if number % 20 == 0:
                server.send("t", payload="x" * 100_000, deliver_after="100ms")
        sent = _IDLE // 20
        wait_for(lambda: len(server.records("t")) == sent, "all to be delivered")
        assert server.is_ready()
    assert "Too many open files" not in server.log
    assert f"at most {_FILES // 4} connections" in server.log
    assert server.stop() == 0, server.log


def test_the_soft_limit_is_raised(new_server: Callable[..., Server]) -> None:
    server = limited(new_server(), 128, 4096).start()
    with open(f"/proc/{server.process.pid}/limits") as limits:
        line = next(line for line in limits if line.startswith("Max open files"))
    assert line.split()[3:5] == ["4096", "4096"]
    assert server.stop() == 0, server.log
