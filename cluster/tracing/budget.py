"""Limits the number of spans in a process. Senders choose which messages are sampled, so without a limit they could
make tracing arbitrarily expensive."""

from __future__ import annotations

_MAX_BURST = 256  # the queue of spans in memory holds 2,048


class SpanBudget:
    """A token bucket that gains `per_s` tokens a second. It contains at most the tokens of one second, and at most 256.
    It starts full."""

    def __init__(self, per_s: int, now: float) -> None:
        """`now`: the time in seconds, by a clock that never goes back."""
        self._per_s, self._most = per_s, float(min(per_s, _MAX_BURST))
        self._tokens, self._filled_at = self._most, now

    def take(self, asked: int, now: float) -> int:
        """How many of the requested spans are allowed."""
        self._tokens = min(self._tokens + (now - self._filled_at) * self._per_s, self._most)
        self._filled_at = now
        taken = min(asked, int(self._tokens))
        self._tokens -= taken
        return taken
