"""Data for the console's charts: sampled once a second for all viewers, and kept for a day.

The last ten minutes have one point per second, older data one per minute: 2,040 points, about a megabyte.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from duemq.background.loop import Loop
from duemq.cluster.figures import HORIZONS_MS, Figures
from duemq.model.errors import DuemqError

EVERY_S: Final = 1.0
_SECONDS, _MINUTES = 600, 1440
_MINUTE_MS = 60_000
_NO_HORIZON: Final = (0,) * (len(HORIZONS_MS) + 1)


class HistorySource(Protocol):
    """The object that is sampled; see `Gateway`."""

    def cluster(self) -> dict[str, Any]: ...
    async def figures(self) -> Sequence[Figures]: ...


class Point(NamedTuple):
    """The data for one moment, `at` (epoch ms): rates in messages/s since the previous point, pending messages, and the
    lateness (ms) of the deliveries since then, which is None if there were none or their data is missing.
    `overdue_ms`: how long the oldest undelivered message has been due."""

    at: int
    accepted: float
    delivered: float
    pending: int
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    overdue_ms: int


class Sample(NamedTuple):
    """One reading; counts are cumulative."""

    at: int
    accepted: int
    delivered: int
    pending: int
    edges_ms: tuple[float, ...]
    lateness: tuple[int, ...]
    overdue_ms: int


@dataclass
class Now:
    """The latest reading in full. `cluster`: see `Gateway.cluster`."""

    at: int = 0
    cluster: dict[str, Any] = field(default_factory=lambda: {"nodes": [], "shards": []})
    figures: list[Figures] = field(default_factory=list)

    @property
    def pending(self) -> int:
        return sum(shard.get("pending", 0) for shard in self.cluster["shards"])

    @property
    def horizon(self) -> tuple[int, ...]:
        """The number of pending messages for each of `HORIZONS_MS`, summed over all nodes."""
        parts = [one.horizon for one in self.figures if len(one.horizon) == len(_NO_HORIZON)]
        return tuple(map(sum, zip(_NO_HORIZON, *parts, strict=True)))

    def total(self, name: str) -> int:
        """The sum of a figure over all nodes. `name`: the name of the figure's field."""
        return sum(getattr(one, name) for one in self.figures)

    @property
    def overdue_ms(self) -> int:
        return max((one.overdue_ms for one in self.figures), default=0)


class History:
    """Reads a source once a second while `run` runs. `clock` returns epoch ms."""

    def __init__(self, source: HistorySource, clock: Callable[[], int]) -> None:
        self._source, self._clock = source, clock
        self.now = Now()
        self._last: Sample | None = None
        self._seconds: deque[Point] = deque(maxlen=_SECONDS)
        self._minutes: deque[Point] = deque(maxlen=_MINUTES)
        self._minute_start: Sample | None = None
        self._grown = asyncio.Condition()
        self.streams = 0  # the number of open event streams (`proxy/console/live.py`)
        self.event: tuple[int, bytes] = (-1, b"")  # the time of a sample, and the streams' event for it

    @property
    def points(self) -> list[Point]:
        """All points, oldest first: one per minute, and one per second for the last ten minutes."""
        first = self._seconds[0].at if self._seconds else 0
        return [point for point in self._minutes if point.at < first] + list(self._seconds)

    async def run(self) -> None:
        """Sample until cancelled."""
        loop = Loop(
            "console", self.sample, every_s=EVERY_S, expected=(DuemqError,), first_s=EVERY_S, level=logging.DEBUG
        )
        await loop.run()

    async def sample(self) -> None:
        figures, cluster = list(await self._source.figures()), self._source.cluster()
        self.now = Now(self._clock(), cluster, figures)
        sample = self._read(self.now)
        if self._last is not None and sample.at > self._last.at:
            self._seconds.append(_point(self._last, sample))
        if self._minute_start is None:
            self._minute_start = sample
        elif sample.at - self._minute_start.at >= _MINUTE_MS:
            self._minutes.append(_point(self._minute_start, sample))
            self._minute_start = sample
        self._last = sample
        async with self._grown:
            self._grown.notify_all()

    async def wait(self) -> None:
        """Wait for the next sample."""
        async with self._grown:
            await self._grown.wait()

    def _read(self, now: Now) -> Sample:
        outcomes = [shard["outcomes"] for shard in now.cluster["shards"] if "outcomes" in shard]
        direct = now.total("direct")
        timed = [one for one in now.figures if one.lateness]
        edges = timed[0].edges_ms if timed else ()
        same = [one.lateness for one in timed if one.edges_ms == edges]  # nodes of one version use the same buckets
        return Sample(
            now.at, sum(one["accepted"] for one in outcomes) + direct,
            sum(one["delivered"] for one in outcomes) + direct, now.pending, edges,
            tuple(map(sum, zip(*same, strict=True))), now.overdue_ms,
        )  # fmt: skip


def _point(before: Sample, after: Sample) -> Point:
    seconds = (after.at - before.at) / 1000
    p50 = p99 = most = None
    if after.edges_ms and after.edges_ms == before.edges_ms:
        # A sum falls when a node has left or a topic was forgotten, because their counts are then missing.
        counts = [max(now - then, 0) for now, then in zip(after.lateness, before.lateness, strict=True)]
        if sum(counts):
            p50, p99 = (_quantile(after.edges_ms, counts, q) for q in (0.5, 0.99))
            most = _quantile(after.edges_ms, counts, 1.0)
    return Point(
        after.at, max(after.accepted - before.accepted, 0) / seconds,
        max(after.delivered - before.delivered, 0) / seconds, after.pending, p50, p99, most, after.overdue_ms,
    )  # fmt: skip


def _quantile(edges_ms: Sequence[float], counts: Sequence[int], q: float) -> float:
    """The quantile (ms) of a histogram, linear within a bucket. The last bucket has no upper bound, so for a quantile
    in it the result is the bucket's lower bound."""
    rank, below, lower = q * sum(counts), 0, 0.0
    for upper, count in zip(edges_ms, counts, strict=False):
        if count and below + count >= rank:
            return round(lower + (upper - lower) * (rank - below) / count, 1)
        below, lower = below + count, upper
    return lower
