"""How many messages may be in flight to a destination, and how many may begin per second. Pure: `now` is an argument.

The limit on what is in flight goes down by half where the other side says that it is too much, and up by one for each
limit's worth of messages that it took (additive increase, multiplicative decrease, as TCP does since RFC 2581).
"""

from __future__ import annotations

_LEAST = 1.0
_CALM_S = 1.0  # the answers to what was in flight say the same once more


class Throttle:
    """`concurrency`: the most in flight. `rate`: messages/s, 0 = any; a tenth of a second's worth may begin at once."""

    def __init__(self, concurrency: int, rate: int = 0) -> None:
        self._most = float(concurrency)
        self.limit = float(concurrency)
        """In flight at most, just now."""
        self.in_flight = 0
        self._rate = float(rate)
        self._burst = max(rate / 10, 1.0)
        self._tokens = self._burst
        self._filled_at: float | None = None
        self._closed_until = 0.0
        self._lowered_at = -_CALM_S

    def wait_s(self, now: float) -> float:
        """0 where a message may begin now; else after so many s it is worth asking again. Infinite: once one has
        ended."""
        if now < self._closed_until:
            return self._closed_until - now
        if self.in_flight >= int(self.limit):
            return float("inf")
        if not self._rate:
            return 0.0
        if self._filled_at is not None:
            self._tokens = min(self._tokens + (now - self._filled_at) * self._rate, self._burst)
        self._filled_at = now
        return 0.0 if self._tokens >= 1 else (1 - self._tokens) / self._rate

    def begin(self) -> None:
        """One begins, which `wait_s` allowed."""
        self.in_flight += 1
        if self._rate:
            self._tokens -= 1

    def end(self, now: float, *, accepted: bool, overloaded: bool = False, closed_s: float = 0.0) -> None:
        """One has ended. `closed_s`: the other side wants no message for so long."""
        self.in_flight -= 1
        if overloaded:
            if now - self._lowered_at >= _CALM_S:
                self.limit, self._lowered_at = max(self.limit / 2, _LEAST), now
            self._closed_until = max(self._closed_until, now + closed_s)
        elif accepted and self.limit < self._most:
            self.limit = min(self.limit + 1 / self.limit, self._most)
