"""Counters for one destination."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from typing import NamedTuple

from duemq.cluster.relays.figures import BUCKETS_MS
from duemq.relay.base import Reply, Result

_ATTEMPTS = 20  # number of failed attempts stored for display
_STATUSES = 50  # number of different answers that are counted separately


class FailedDelivery(NamedTuple):
    """An attempt that was not accepted: its time (epoch ms), the message, how long the attempt took, and the answer."""

    at: int
    id: str
    attempt: int
    took_ms: int
    status: str
    detail: str


class Histogram:
    """A histogram of times in ms."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_MS) + 1)
        self.sum_ms = 0.0

    def add(self, ms: float) -> None:
        self.counts[bisect_left(BUCKETS_MS, ms)] += 1
        self.sum_ms += ms


class DestinationFigures:
    """Counters since this process started the destination."""

    def __init__(self) -> None:
        self.results: Counter[Result] = Counter()
        self.statuses: Counter[str] = Counter()
        """Number of answers by status, including accepted messages. Up to `_STATUSES` different statuses are counted;
        the rest are counted as `other`."""
        self.lateness, self.took = Histogram(), Histogram()
        self.last_accepted_at: int | None = None
        self.attempts: deque[FailedDelivery] = deque(maxlen=_ATTEMPTS)
        self.trouble = ""
        """Why the last attempt to send failed, as a sentence."""

    def accepted(self, now_ms: int, took_ms: float, due_ms: int | None, status: str) -> None:
        self._count(Result.ACCEPTED, status)
        self.last_accepted_at = now_ms
        self.took.add(took_ms)
        if due_ms is not None:
            self.lateness.add(max(now_ms - due_ms, 0))
        self.trouble = ""

    def refused(self, attempt: FailedDelivery, reply: Reply) -> None:
        self._count(reply.result, reply.status)
        self.attempts.append(attempt)

    def _count(self, result: Result, status: str) -> None:
        self.results[result] += 1
        known = status in self.statuses or len(self.statuses) < _STATUSES
        self.statuses[status if known else "other"] += 1
