"""Names for requests: unique in this process by a counter, and among processes by a random start."""

from __future__ import annotations

from itertools import count
from secrets import token_hex


class RequestIds:
    """Call it for the next id (ASCII bytes, as it stands in `X-Request-ID`). A client's own id is never taken over:
    two requests must not share one."""

    def __init__(self) -> None:
        self._prefix = token_hex(6).encode()
        self._count = count(1)

    def __call__(self) -> bytes:
        return b"%b-%x" % (self._prefix, next(self._count))
