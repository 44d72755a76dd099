"""Prometheus metrics for a relay, computed at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from duemq.cluster.relays.figures import BUCKETS_MS
from duemq.relay.base import Result
from duemq.relay.figures import Histogram
from duemq.relay.relay import Relay

_BOUNDS: Final = [*(str(ms / 1000) for ms in BUCKETS_MS), "+Inf"]
_LABELS: Final = ["destination"]
_MEASURED: Final[tuple[tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, str], ...]] = (
    (GaugeMetricFamily, "lag", "duemq_relay_lag_messages", "Messages in its topics not delivered to a destination yet"),
    (GaugeMetricFamily, "in_flight", "duemq_relay_in_flight_messages",
     "Messages sent to a destination and not answered yet"),
    (GaugeMetricFamily, "limit", "duemq_relay_in_flight_limit_messages", "Messages that may be in flight at present"),
    (CounterMetricFamily, "dead", "duemq_relay_dead_letters_total",
     "Messages of a destination that became dead letters"),
)  # fmt: skip
"""Metrics for each destination at work in this process: the type, the field in `RelayFigures`, the name and the help
text."""


class RelayCollector(Collector):
    """`relay`: returns this process's relay, or None while the process has none."""

    def __init__(self, relay: Callable[[], Relay | None]) -> None:
        self._relay = relay

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        relay = self._relay()
        if relay is None:
            return
        yield from _of_destinations_at_work(relay)
        yield from _of_all_destinations(relay)


def _of_destinations_at_work(relay: Relay) -> Iterator[Metric]:
    at_work = relay.measured()
    for make, field, metric, text in _MEASURED:
        family = make(metric, text, labels=_LABELS)
        for name, figures in at_work.items():
            if (value := getattr(figures, field)) is not None:
                family.add_metric([name], value)
        yield family
    oldest = GaugeMetricFamily(
        "duemq_relay_oldest_message_seconds",
        "Age in its topic of the oldest message not delivered to a destination yet",
        labels=_LABELS,
    )
    for name, figures in at_work.items():
        oldest.add_metric([name], 0 if figures.oldest_at is None else max(relay.now - figures.oldest_at, 0) / 1000)
    yield oldest


def _of_all_destinations(relay: Relay) -> Iterator[Metric]:
    attempts = CounterMetricFamily(
        "duemq_relay_attempts_total", "Messages sent to a destination, by result",
        labels=[*_LABELS, "result"],
    )  # fmt: skip
    answers = CounterMetricFamily(
        "duemq_relay_answers_total", "Answers of a destination, by their one-word status", labels=[*_LABELS, "status"]
    )
    troubled = GaugeMetricFamily(
        "duemq_relay_troubled", "1 while a destination that is not paused takes no messages", labels=_LABELS
    )
    took = HistogramMetricFamily(
        "duemq_relay_send_seconds", "Time a destination took to accept a message", labels=_LABELS
    )
    lateness = HistogramMetricFamily(
        "duemq_relay_lateness_seconds",
        "Time from a message's due time until it was accepted, retries included",
        labels=_LABELS,
    )
    for name in relay.names:
        troubled.add_metric([name], bool(relay.trouble(name)))
        figures = relay.figures_of(name)
        if figures is None:
            continue
        for result in Result:
            attempts.add_metric([name, result.value], figures.results[result])
        for status, count in figures.statuses.items():
            answers.add_metric([name, status], count)
        _add(took, name, figures.took)
        _add(lateness, name, figures.lateness)
    yield from (attempts, answers, troubled, took, lateness)


def _add(family: HistogramMetricFamily, name: str, times: Histogram) -> None:
    buckets = list(zip(_BOUNDS, accumulate(times.counts), strict=True))
    family.add_metric([name], buckets, times.sum_ms / 1000)
