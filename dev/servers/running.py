"""What runs for as long as a `with` block does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Running(ABC):
    """A context manager: entered, it is ready; left (or where it does not start), it is gone."""

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
        """Come back when it is ready. Raises LocalError."""

    @abstractmethod
    def close(self) -> None:
        """End it at once. Idempotent; its folder is left as it is."""
