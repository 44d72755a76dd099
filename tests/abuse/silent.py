"""Connections that send nothing, or next to nothing."""

from __future__ import annotations

from threading import Event

from tests.abuse.base import Abuser
from tests.abuse.crowd import Crowd

_FOREVER_S = 1e9


class IdleConnections(Abuser):
    """Never say a word."""

    def run(self, stop: Event) -> None:
        Crowd(self, self.sizes.idle, life_s=_FOREVER_S).run(stop)


class SlowHeads(Abuser):
    """A byte of a head in a second, and the head has no end."""

    def run(self, stop: Event) -> None:
        begin = self.head("GET", "/healthz")[:-2] + b"X-Slow: "
        Crowd(self, self.sizes.slow_heads, trickle=lambda at: begin[at : at + 1] or b"a", life_s=_FOREVER_S).run(stop)
