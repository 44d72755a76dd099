"""Several servers of one kind, told what to do one by one or all at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

from duemq.proxy.local.process import Process


class Ensemble(ABC):
    """Servers are numbered from 1; a call without a number is for all of them. A context manager: they run inside."""

    processes: dict[int, Process]
    numbers: range

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def start(self, number: int | None = None) -> None:
        """Come back when they serve. Raises LocalError."""

    def stop(self, number: int | None = None) -> None:
        """SIGTERM, and wait. Raises LocalError."""
        processes = [self.processes[each] for each in self.these(number)]
        for process in processes:
            process.resume()
            process.terminate()
        for process in processes:
            process.stop()

    def kill(self, number: int | None = None) -> None:
        """SIGKILL, and wait."""
        for each in self.these(number):
            self.processes[each].kill()

    def pause(self, number: int | None = None) -> None:
        """SIGSTOP: their ports stay open, and nobody answers."""
        for each in self.these(number):
            self.processes[each].pause()

    def resume(self, number: int | None = None) -> None:
        """SIGCONT."""
        for each in self.these(number):
            self.processes[each].resume()

    def close(self) -> None:
        """End all of them at once. Idempotent; their folder is left as it is."""
        self.kill()

    def these(self, number: int | None) -> Sequence[int]:
        return self.numbers if number is None else (number,)
