"""Prometheus metrics for lag, and the loop that reads it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from duemq.background.loop import Loop, OutageOptions
from duemq.client.lag.reader import LagReader
from duemq.client.lag.values import GroupLag, PartitionLag
from duemq.model.errors import Rejected, Unavailable

_LABELS = ("group", "topic", "partition", "retry")
_FIGURES = {
    "lag": ("messages", "Offsets not committed"),
    "inflight": ("messages", "Offsets pulled and not committed; only for groups that report it"),
    "available": ("messages", "Offsets not pulled; only for groups that report it"),
    "lost": ("messages", "Offsets that retention removed before the group committed them"),
    "lag_ms": ("seconds", "Age of the oldest message not committed"),
    "inflight_ms": ("seconds", "Age of the oldest message in hand"),
    "available_ms": ("seconds", "Age of the oldest message not pulled"),
}


class LagMetrics(Collector):
    """Exports the latest reading. After a failed reading it exports no figures for groups, since old figures would look
    current."""

    def __init__(self) -> None:
        self._groups: list[GroupLag] | None = None
        self._reads = self._errors = 0
        self._took_s = self._at_s = 0.0

    def record(self, groups: list[GroupLag], took_s: float, at_s: float) -> None:
        """Record a reading. `took_s`: how long it took. `at_s`: when it ended (epoch, s)."""
        self._groups, self._took_s, self._at_s = groups, took_s, at_s
        self._reads += 1

    def record_failure(self) -> None:
        self._groups = None
        self._errors += 1

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        groups = self._groups  # a scrape runs in another thread
        yield GaugeMetricFamily("duemq_lag_up", "1 if the latest reading succeeded", int(groups is not None))
        yield CounterMetricFamily("duemq_lag_reads", "Readings that succeeded", self._reads)
        yield CounterMetricFamily("duemq_lag_read_errors", "Readings that failed", self._errors)
        yield GaugeMetricFamily("duemq_lag_read_seconds", "How long the latest good reading took", self._took_s)
        yield GaugeMetricFamily("duemq_lag_read_timestamp_seconds", "When the latest good reading ended", self._at_s)
        if groups is not None:
            yield from _of_groups(groups)


def _of_groups(groups: Iterable[GroupLag]) -> Iterable[Metric]:
    members = GaugeMetricFamily("duemq_group_members", "Members that joined", labels=("group", "state"))
    states = GaugeMetricFamily(
        "duemq_group_partitions", "Partitions by the state of their figures", labels=("group", "topic", "state")
    )
    each: list[tuple[list[str], PartitionLag]] = []
    for group in groups:
        members.add_metric([group.group, group.state], group.members)
        for topic in group.topics:
            for state, count in Counter(one.state for one in topic.partitions).items():
                states.add_metric([group.group, topic.topic, state], count)
            retry = "true" if topic.retry else "false"
            each += (([group.group, topic.topic, str(one.partition), retry], one) for one in topic.partitions)
    yield members
    yield states
    for name, (unit, text) in _FIGURES.items():
        family = GaugeMetricFamily(f"duemq_group_{name.removesuffix('_ms')}_{unit}", text, labels=_LABELS)
        for labels, one in each:
            value = getattr(one, name)
            if value is not None and one.lag is not None:
                family.add_metric(labels, value / 1000 if unit == "seconds" else value)
        yield family
    matching = GaugeMetricFamily(
        "duemq_group_matching_messages", "Messages not committed that pass the tag filter", labels=_LABELS
    )
    exact = GaugeMetricFamily(
        "duemq_group_matching_exact", "1 if all messages were read; 0: more may match", labels=_LABELS
    )
    for labels, one in each:
        if one.matching is not None:
            matching.add_metric(labels, one.matching.messages)
            exact.add_metric(labels, one.matching.exact)
    yield matching
    yield exact


async def keep_reading(
    reader: LagReader,
    metrics: LagMetrics,
    stop: asyncio.Event,
    every_s: float,
    groups: Collection[str] | None = None,
    topics: Collection[str] | None = None,
    tags: str | None = None,
) -> None:
    """Start the reader, and read every `every_s` until `stop` is set. If brokers are unreachable or groups are missing,
    it retries. Raises all other errors."""

    async def turn() -> float:
        began = time.monotonic()
        await reader.start()
        try:
            metrics.record(await reader.read(groups, topics, tags), time.monotonic() - began, time.time())
        except Rejected as error:
            if error.code in ("unknown_group", "unknown_topic"):
                raise Unavailable(str(error)) from error
            raise
        return max(every_s - (time.monotonic() - began), 0)

    pace = OutageOptions(first_s=every_s, longest_s=every_s)  # no growing pauses: old figures are worthless
    loop = Loop("lag", turn, ends_on=(Exception,), on_failure=lambda error: metrics.record_failure(), **pace)
    try:
        await loop.run(stop)
    finally:
        await reader.stop()
