"""Limits messages in flight to a destination, and messages started per second. Pure: `now` is an argument.

The limit for messages in flight is halved when the other side reports an overload. For every N accepted messages, with
N being the limit, it is raised by one (additive increase, multiplicative decrease, as in TCP since RFC 2581).

    three answers in a row ask for a delay -> closed for 1 s -> one message is tried -> overloaded: twice as long
                                                                                     -> any other answer: open
"""

from __future__ import annotations

_LEAST = 1.0
_CALM_S = 1.0  # after the limit was halved: answers to messages in flight report the same overload again
_CLOSES = 3  # answers in a row that ask for a delay; a single one may concern only its message (a tenant's quota)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


class Throttle:
    """The throttle for one destination. `concurrency`: how many messages may be in flight at most. `rate`: messages/s,
    0 = no limit; up to a tenth of this number may start at once."""

    def __init__(self, concurrency: int, rate: int = 0) -> None:
        self._most = float(concurrency)
        self.limit = float(concurrency)
        """The current limit for messages in flight."""
        self.in_flight = 0
        self.closed_until: float | None = None
        """When one message is tried; None if the throttle is not closed."""
        self._rate = float(rate)
        self._burst = max(rate / 10, 1.0)
        self._tokens = self._burst
        self._filled_at: float | None = None
        self._lowered_at = -_CALM_S
        self._postponed = 0  # answers in a row that asked for a delay
        self._pause_s = _FIRST_PAUSE_S
        self._trying = False

    def wait_s(self, now: float) -> float:
        """0 if a message may start now; otherwise, the seconds after which to ask again. Infinity: ask again when a
        message has ended."""
        if self.closed_until is not None:
            if now < self.closed_until:
                return self.closed_until - now
            if self._trying:
                return float("inf")
        elif self.in_flight >= int(self.limit):
            return float("inf")
        if not self._rate:
            return 0.0
        if self._filled_at is not None:
            self._tokens = min(self._tokens + (now - self._filled_at) * self._rate, self._burst)
        self._filled_at = now
        return 0.0 if self._tokens >= 1 else (1 - self._tokens) / self._rate

    def begin(self) -> bool:
        """A message starts; `wait_s` must have allowed it. Returns whether it is the one that is tried while all others
        wait."""
        self.in_flight += 1
        if self._rate:
            self._tokens -= 1
        self._trying = self._trying or self.closed_until is not None
        return self.closed_until is not None

    def end(
        self, now: float, *, accepted: bool, overloaded: bool = False, postponed: bool = False, tried: bool = False
    ) -> None:
        """A message was answered. `postponed`: whether the other side asked for a delay. `tried`: the return value of
        `begin`."""
        self.in_flight -= 1
        if overloaded and now - self._lowered_at >= _CALM_S:
            self.limit, self._lowered_at = max(self.limit / 2, _LEAST), now
        elif accepted and self.limit < self._most:
            self.limit = min(self.limit + 1 / self.limit, self._most)
        if tried:
            self._trying = False
            if overloaded:
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
                self.closed_until = now + self._pause_s
            else:
                self.closed_until, self._postponed, self._pause_s = None, 0, _FIRST_PAUSE_S
        elif postponed and self.closed_until is None:
            self._postponed += 1
            if self._postponed >= _CLOSES:
                self.closed_until = now + self._pause_s
        elif accepted:
            self._postponed = 0

    def give_up(self, *, tried: bool) -> None:
        """A message ended without an answer, because the consumer cancelled it."""
        self.in_flight -= 1
        self._trying = self._trying and not tried
