"""Prometheus metrics of a process's loops."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from duemq.background.loop import loops
from duemq.background.outage import failure_counts


class LoopCollector(Collector):
    """If several loops have the same name, the worst of them is shown."""

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        now, failures = monotonic(), failure_counts()
        silent: dict[str, float] = {}
        failing: dict[str, float] = {}
        for loop in loops():
            silent[loop.name] = max(silent.get(loop.name, 0.0), now - loop.pulse)
            since = now if loop.outage.since is None else loop.outage.since
            failing[loop.name] = max(failing.get(loop.name, 0.0), now - since)
            failures[loop.name] += 0
        counter = CounterMetricFamily("duemq_loop_failures", "Turns of background loops that failed", labels=["loop"])
        for name, count in sorted(failures.items()):
            counter.add_metric([name], count)
        yield counter
        for name, text, seconds_by_name in (
            ("duemq_loop_failing_seconds", "How long a background loop has failed; 0 while all is well", failing),
            ("duemq_loop_pulse_age_seconds", "Time since a background loop started or ended a turn", silent),
        ):
            gauge = GaugeMetricFamily(name, text, labels=["loop"])
            for loop_name, seconds in sorted(seconds_by_name.items()):
                gauge.add_metric([loop_name], seconds)
            yield gauge
