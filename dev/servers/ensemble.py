"""Several servers of one kind, controlled one by one or all at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from duemq.dev.servers.ports import free_port
from duemq.dev.servers.process import Process
from duemq.dev.servers.running import RunningServer


class Ensemble(RunningServer):
    """Servers are numbered from 1. A call without a number applies to all of them."""

    processes: dict[int, Process]
    numbers: range

    @abstractmethod
    def start(self, number: int | None = None) -> None:
        """Start the servers, and return when they serve. Raises LocalError."""

    def stop(self, number: int | None = None) -> None:
        """Send SIGTERM, and wait. Raises LocalError."""
        processes = [self.processes[each] for each in self.these(number)]
        for process in processes:
            process.resume()
            process.terminate()
        for process in processes:
            process.stop()

    def kill(self, number: int | None = None) -> None:
        """Send SIGKILL, and wait."""
        for each in self.these(number):
            self.processes[each].kill()

    def pause(self, number: int | None = None) -> None:
        """Send SIGSTOP: the servers' ports stay open, but they do not answer."""
        for each in self.these(number):
            self.processes[each].pause()

    def resume(self, number: int | None = None) -> None:
        """Send SIGCONT."""
        for each in self.these(number):
            self.processes[each].resume()

    def close(self) -> None:
        """Kill all servers at once. Idempotent; their folder is left as it is."""
        self.kill()

    def these(self, number: int | None) -> Sequence[int]:
        return self.numbers if number is None else (number,)

    def _by_server(self, ports: Sequence[int]) -> dict[int, int]:
        """The ports by server number; free ports if none are given."""
        return dict(zip(self.numbers, ports or [free_port() for _ in self.numbers], strict=True))
