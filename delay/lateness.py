"""How late the deliveries of a topic are: counts for Prometheus, and quantiles of the latest deliveries.

Lateness is measured from the due time, or from acceptance or the last move if that was later. `overdue` counts the
messages whose due time was already a second or more in the past when they were accepted or moved.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.samples import Exemplar, Sample

from duemq.model.messages.key import due_of, dues_of
from duemq.model.messages.row import id_of

_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60, 600, 3600)
_EXAMPLE_MS = 1000  # how long a bucket keeps its example: reading an id takes time, so not every message is an example
EDGES_MS: Final = tuple(bucket * 1000 for bucket in _BUCKETS_S)
"""The upper bounds of the lateness buckets (ms). One further bucket has no upper bound."""
_EDGES_MS = np.array(EDGES_MS)
_FIRST_SAMPLE, _SAMPLE = 256, 20_000
_GATHER = 256  # keys collected before they are counted, because each call of numpy has a fixed cost
_LEAST_MS, _MAX_MS = -(1 << 31), (1 << 31) - 1  # the range of a value in the sample: 24 days


class Example(NamedTuple):
    """A delivery in a bucket: the message's id, its lateness, and the time of the delivery (epoch ms)."""

    id: str
    late_ms: int
    at_ms: int


class Lateness:
    """Lateness of one topic's deliveries: a histogram since the start, and the latest values for quantiles (ms).

    `buckets`, `total_ms` and `highest_ms` are as of the last call of `count`.
    """

    def __init__(self) -> None:
        self.buckets = np.zeros(len(_BUCKETS_S) + 1, np.int64)
        self.total_ms = self.highest_ms = self.at_ms = 0  # `at_ms`: time of the last delivery, epoch ms
        self.overdue = 0
        self.latest = np.zeros(_FIRST_SAMPLE, np.int32)  # grows up to `_SAMPLE` values, then it is a ring buffer
        self._count = self._next = 0
        self.examples: dict[int, Example] = {}  # by bucket
        self._keys: list[bytes] = []  # keys of deliveries that are not counted yet
        self._cycles: list[tuple[int, int]] = []  # for each of their cycles: time (epoch ms), and number of deliveries

    def observe(self, keys: Sequence[bytes], at_ms: int, first_row: bytes | None = None) -> None:
        """Record the keys of messages that a cycle delivered at this time (epoch ms). `first_row`: the row of the first
        message, which may become its bucket's example."""
        self._keys += keys
        self._cycles.append((at_ms, len(keys)))
        self.at_ms = at_ms
        if first_row is not None:
            late_ms = at_ms - due_of(keys[0])
            bucket = bisect_left(_BUCKETS_S, late_ms / 1000)
            example = self.examples.get(bucket)
            if example is None or at_ms - example.at_ms >= _EXAMPLE_MS:
                self.examples[bucket] = Example(id_of(first_row).decode(), late_ms, at_ms)
        if len(self._keys) >= _GATHER:
            self.count()

    def count(self) -> None:
        """Count the deliveries recorded since the last call."""
        if self._keys:
            times, counts = zip(*self._cycles, strict=True)
            keys, self._keys, self._cycles = self._keys, [], []
            self.add(np.repeat(times, counts) - dues_of(keys))

    def add(self, lateness: npt.NDArray[np.int64]) -> None:
        self.buckets += np.bincount(np.searchsorted(_EDGES_MS, lateness), minlength=len(self.buckets))
        self.total_ms += int(lateness.sum())
        self.highest_ms = max(self.highest_ms, int(lateness.max()))
        latest = np.clip(lateness[-_SAMPLE:], _LEAST_MS, _MAX_MS).astype(np.int32)
        size = len(self.latest)
        if size < _SAMPLE and self._count + len(latest) > size:
            size = min(2 * (self._count + len(latest)), _SAMPLE)
            self.latest = np.resize(self.latest, size)
        end = self._next + len(latest)
        self.latest[self._next : end] = latest[: size - self._next]
        if end > size:
            self.latest[: end - size] = latest[size - self._next :]
        self._next, self._count = end % size, min(self._count + len(latest), size)

    def summary(self) -> dict[str, Any]:
        """The count since the start, and quantiles of the latest 20,000 deliveries, in ms."""
        self.count()
        p50, p99 = np.percentile(self.latest[: self._count], (50, 99))
        return {
            "count": int(self.buckets.sum()),
            "p50_ms": round(float(p50), 1),
            "p99_ms": round(float(p99), 1),
            "max_ms": self.highest_ms,
        }


class LatenessFamily(HistogramMetricFamily):
    """The current histograms of all topics. Their samples, up to 19,000, are built only during encoding."""

    def __init__(self, lateness: Mapping[str, Lateness]) -> None:
        text = "Commit time minus due time, or minus when the message was accepted or moved if that was later"
        super().__init__("duemq_lateness_seconds", text, labels=["topic"])
        for one in lateness.values():
            one.count()
        self._topics = [
            (topic, one.buckets.copy(), one.total_ms / 1000, dict(one.examples)) for topic, one in lateness.items()
        ]
        del self.samples

    @cached_property
    def samples(self) -> list[Sample]:  # type: ignore[override]
        name, samples, edges = self.name, list[Sample](), [*map(str, _BUCKETS_S), "+Inf"]
        for topic, buckets, total_s, examples in self._topics:
            counts = np.cumsum(buckets).tolist()
            for bucket, (edge, count) in enumerate(zip(edges, counts, strict=True)):
                labels = {"topic": topic, "le": edge}
                samples.append(Sample(f"{name}_bucket", labels, count, exemplar=_exemplar(examples.get(bucket))))
            samples.append(Sample(f"{name}_count", {"topic": topic}, counts[-1]))
            samples.append(Sample(f"{name}_sum", {"topic": topic}, total_s))
        return samples


def _exemplar(example: Example | None) -> Exemplar | None:
    """The exemplar for OpenMetrics. The older text format does not have exemplars."""
    if example is None:
        return None
    return Exemplar({"message_id": example.id}, example.late_ms / 1000, example.at_ms / 1000)
