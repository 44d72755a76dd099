"""Prometheus metrics of a relay, computed at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from duemq.cluster.relays.figures import BUCKETS_MS
from duemq.relay.base import Result
from duemq.relay.figures import Histogram
from duemq.relay.relay import Relay

_BOUNDS = [*(str(ms / 1000) for ms in BUCKETS_MS), "+Inf"]


class RelayCollector(Collector):
    """`relay`: gives the one of this process, or None while it has none."""

    def __init__(self, relay: Callable[[], Relay | None]) -> None:
        self._relay = relay

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        relay = self._relay()
        if relay is None:
            return
        attempts = CounterMetricFamily(
            "duemq_relay_attempts_total", "Messages sent to a destination, by what became of them",
            labels=["destination", "result"],
        )  # fmt: skip
        in_flight = GaugeMetricFamily(
            "duemq_relay_in_flight_messages", "Messages that a destination has not answered yet", labels=["destination"]
        )
        lag = GaugeMetricFamily(
            "duemq_relay_lag_messages", "Messages in its topics that a destination has not got yet",
            labels=["destination"],
        )  # fmt: skip
        limit = GaugeMetricFamily(
            "duemq_relay_in_flight_limit_messages", "Messages that may be in flight just now", labels=["destination"]
        )
        troubled = GaugeMetricFamily(
            "duemq_relay_troubled", "1 while nothing can be handed on to a destination", labels=["destination"]
        )
        dead = CounterMetricFamily(
            "duemq_relay_dead_letters_total", "Messages that became dead letters of a destination",
            labels=["destination"],
        )  # fmt: skip
        took = HistogramMetricFamily(
            "duemq_relay_send_seconds", "How long a destination took to accept a message", labels=["destination"]
        )
        lateness = HistogramMetricFamily(
            "duemq_relay_lateness_seconds", "From a message's due time until its destination accepted it",
            labels=["destination"],
        )  # fmt: skip
        measured = relay.measured()
        for name in relay.names:
            figures, shown = relay.figures_of(name), measured.get(name)
            if figures is None:
                continue
            for result in Result:
                attempts.add_metric([name, result.value], figures.results[result])
            if shown and shown.lag is not None:
                lag.add_metric([name], shown.lag)
            in_flight.add_metric([name], shown.in_flight if shown else 0)
            limit.add_metric([name], shown.limit if shown else 0)
            troubled.add_metric([name], bool(figures.trouble))
            dead.add_metric([name], shown.dead if shown else 0)
            _add(took, name, figures.took)
            _add(lateness, name, figures.lateness)
        yield from (attempts, lag, in_flight, limit, troubled, dead, took, lateness)


def _add(family: HistogramMetricFamily, name: str, times: Histogram) -> None:
    buckets = list(zip(_BOUNDS, accumulate(times.counts), strict=True))
    family.add_metric([name], buckets, times.sum_ms / 1000)
