"""The rate limit of one caller in one process: requests and messages per second.

Responses have the headers of draft-ietf-httpapi-ratelimit-headers. The limit is a token bucket with the tokens of one
second. A batch may overdraw it; later requests are then refused until the debt is paid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from duemq.model.errors import DuemqError

RATE_LIMIT: Final = "duemq.rate_limit"
"""Key in a request's scope: the caller's `RateLimit`."""


def charge(scope: Mapping[str, Any], count: int) -> None:
    """Charge an admitted request for `count` more messages. `scope`: the request's scope."""
    limit: RateLimit | None = scope.get(RATE_LIMIT)
    if limit is not None:
        limit.charge(count + 1)  # `RateLimit.charge` leaves out the first message


class RateLimited(DuemqError):
    """429: the caller has used up the rate of its key."""

    def __init__(self, what: str, retry_after_s: int) -> None:
        super().__init__(f"this key may have {what} a second; retry in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class RateLimit:
    """The token bucket of one caller. `clock`: monotonic seconds. `what`: the limited things, in words."""

    def __init__(self, rate: int, clock: Callable[[], float], what: str = "messages and requests") -> None:
        self.rate, self._clock, self._what = rate, clock, what
        self._tokens, self._filled_at = float(rate), clock()

    def enter(self) -> None:
        """Take one token for a request. Raises RateLimited."""
        now = self._clock()
        self._tokens = min(self._tokens + (now - self._filled_at) * self.rate, float(self.rate))
        self._filled_at = now
        if self._tokens < 1:
            raise RateLimited(f"{self.rate:,} {self._what}", self._wait_s)
        self._tokens -= 1

    def charge(self, messages: int) -> None:
        """Charge the messages of an admitted request, whose first message is already paid for."""
        self._tokens -= max(messages - 1, 0)

    @property
    def _wait_s(self) -> int:
        """The time until a token is available, in whole seconds."""
        return math.ceil(max(1 - self._tokens, 0) / self.rate)

    def headers(self) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
        """The headers of every answer to the caller."""
        left = f'"key";r={max(int(self._tokens), 0)};t={max(self._wait_s, 1)}'
        return (b"ratelimit-policy", f'"key";q={self.rate};w=1'.encode()), (b"ratelimit", left.encode())
