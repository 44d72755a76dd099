"""A server of a destination as a process: how it is ended and started again."""

from __future__ import annotations

from duemq.dev.servers.process import Process
from duemq.dev.servers.running import RunningServer


class ServerNode(RunningServer):
    """`process` is the server itself. After kill -9 it restarts with everything it acknowledged; for a new quorum queue
    of RabbitMQ, see `until_on_disk`."""

    process: Process

    def stop(self) -> None:
        """In order: SIGTERM."""
        self.process.stop()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()

    def restart(self) -> None:
        """kill -9, and start."""
        self.kill()
        self.start()

    def close(self) -> None:
        self.process.kill()
