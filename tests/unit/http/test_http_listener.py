"""What the kernel keeps for a client of an HTTP server."""

from __future__ import annotations

import socket
from contextlib import closing

from duemq.web.server import listen_on

_CLIENT_KEEPS = 64 << 10  # the kernel doubles it


def test_little_is_kept_for_a_client_that_does_not_read() -> None:
    with closing(listen_on("127.0.0.1:0")) as listener, closing(socket.socket()) as client:
        listener.listen()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _CLIENT_KEEPS)
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        with closing(server):
            server.settimeout(0.2)  # nothing is taken for so long: it is full
            sent = 0
            while sent < 8 << 20:
                try:
                    sent += server.send(bytes(16 << 10))
                except TimeoutError:
                    break
            assert sent < 512 << 10
