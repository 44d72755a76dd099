"""The speed of a job: a steady rate, in small batches. Pure: time is an argument, in seconds."""

from __future__ import annotations

from typing import Final

_BATCH_S: Final = 0.05
_MOST: Final = 500
_DEBT_S: Final = 1.0  # a job that is late catches up on no more than this


class Pacer:
    """`rate`: messages/s; None: unlimited."""

    def __init__(self, rate: float | None, now: float) -> None:
        self._rate, self._due = rate, now

    @property
    def batch(self) -> int:
        """The size of a batch."""
        return _MOST if self._rate is None else max(min(int(self._rate * _BATCH_S), _MOST), 1)

    def wait(self, count: int, now: float) -> float:
        """How long (s) to wait before sending `count` more messages, which are recorded as sent."""
        if self._rate is None:
            return 0.0
        self._due = max(self._due, now - _DEBT_S)
        wait_s = max(self._due - now, 0.0)
        self._due += count / self._rate
        return wait_s
