"""Finds shards whose log is blocked by an open transaction, for readiness and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from duemq.bus.base import Bus
from duemq.cluster.topics.internal_topics import BUFFER, LEDGER
from duemq.model.readiness import Reason, ShardTrouble


def blocked_shards(bus: Bus) -> dict[int, ShardTrouble]:
    """The shards whose commands or ledger are blocked."""
    return {
        number: ShardTrouble(Reason.BLOCKED, producer=one.producer_id, since=one.since)
        for (topic, number), one in bus.blocked().items()
        if topic in (BUFFER, LEDGER)
    }


class BlockedCollector(Collector):
    """`bus` returns None while there is no bus. `clock`: epoch ms."""

    def __init__(self, bus: Callable[[], Bus | None], clock: Callable[[], int]) -> None:
        self._bus, self._clock = bus, clock

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        blocked = GaugeMetricFamily(
            "duemq_blocked_seconds",
            "For how long a partition of duemq's own topics has not been read on, behind an open transaction",
            labels=["topic", "partition", "producer"],
        )
        if (bus := self._bus()) is not None:
            for (topic, number), one in bus.blocked().items():
                seconds = max(self._clock() - one.since, 0) / 1000
                blocked.add_metric([topic, str(number), str(one.producer_id)], seconds)
        yield blocked
