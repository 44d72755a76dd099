"""How much one caller may ask of one process: so many requests and messages a second.

Answers say so as draft-ietf-httpapi-ratelimit-headers has it. It is a token bucket of one second. A batch may overdraw
it: then whatever comes next waits until that is made up for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from duemq.model.errors import DuemqError

RATE_LIMIT: Final = "duemq.rate_limit"
"""Where the `RateLimit` of a caller is in the scope of its requests."""


def charge(scope: Mapping[str, Any], count: int) -> None:
    """Charge a request that was let in for more. `scope`: the request's."""
    limit: RateLimit | None = scope.get(RATE_LIMIT)
    if limit is not None:
        limit.charge(count + 1)  # which leaves out the first


class RateLimited(DuemqError):
    """429: the caller has used up what its key may ask for."""

    def __init__(self, what: str, retry_after_s: int) -> None:
        super().__init__(f"this key may have {what} a second; go on in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class RateLimit:
    """The bucket of one caller. `clock` gives seconds that never go back. `what` it counts."""

    def __init__(self, rate: int, clock: Callable[[], float], what: str = "messages and requests") -> None:
        self.rate, self._clock, self._what = rate, clock, what
        self._tokens, self._filled_at = float(rate), clock()

    def enter(self) -> None:
        """Take one for a request. Raises RateLimited."""
        now = self._clock()
        self._tokens = min(self._tokens + (now - self._filled_at) * self.rate, float(self.rate))
        self._filled_at = now
        if self._tokens < 1:
            raise RateLimited(f"{self.rate:,} {self._what}", self._wait_s)
        self._tokens -= 1

    def charge(self, messages: int) -> None:
        """Take what a request that was let in sends: its first message is paid for."""
        self._tokens -= max(messages - 1, 0)

    @property
    def _wait_s(self) -> int:
        """Until there is one again, in whole seconds."""
        return math.ceil(max(1 - self._tokens, 0) / self.rate)

    def headers(self) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
        """What every answer to the caller says."""
        left = f'"key";r={max(int(self._tokens), 0)};t={max(self._wait_s, 1)}'
        return (b"ratelimit-policy", f'"key";q={self.rate};w=1'.encode()), (b"ratelimit", left.encode())
