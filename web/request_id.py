"""Ids for requests. A counter makes them unique in this process, a random prefix makes them unique among processes."""

from __future__ import annotations

from itertools import count
from secrets import token_hex


class RequestIds:
    """A call returns the next id (ASCII bytes, as in `X-Request-ID`). An id that a client sends is never used, because
    two requests must not share an id."""

    def __init__(self) -> None:
        self._prefix = token_hex(6).encode()
        self._count = count(1)

    def __call__(self) -> bytes:
        return b"%b-%x" % (self._prefix, next(self._count))
