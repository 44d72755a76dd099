"""A resource that runs during a `with` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class RunningServer(ABC):
    """A context manager: on entry the resource starts and is ready; on exit, or if it does not start, it is killed."""

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
    def start(self) -> None:
        """Start the resource, and return when it is ready. Raises LocalError."""

    @abstractmethod
    def close(self) -> None:
        """Kill the resource. Idempotent; its folder is left as it is."""
