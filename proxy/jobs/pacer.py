"""How fast a job goes: a steady rate, in small batches. Pure: time comes in as an argument, in seconds."""

from __future__ import annotations

from typing import Final

_BATCH_S: Final = 0.05
_MOST: Final = 500
_DEBT_S: Final = 1.0  # what a job has missed for longer than this it does not catch up with


class Pacer:
    """`rate`: messages/s; None: as fast as it goes."""

    def __init__(self, rate: float | None, now: float) -> None:
        self._rate, self._due = rate, now

    @property
    def batch(self) -> int:
        """How many go together."""
        return _MOST if self._rate is None else max(min(int(self._rate * _BATCH_S), _MOST), 1)

    def wait(self, count: int, now: float) -> float:
        """How long (s) to wait before `count` more may go, which are taken as gone then."""
        if self._rate is None:
            return 0.0
        self._due = max(self._due, now - _DEBT_S)
        wait_s = max(self._due - now, 0.0)
        self._due += count / self._rate
        return wait_s
