"""A consumer's Prometheus metrics, computed at each scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from duemq.client.consumer.consumer import Consumer


class ConsumerCollector(Collector):
    """Register it with `REGISTRY.register(ConsumerCollector(consumer))`. It takes any number of consumers."""

    def __init__(self, *consumers: Consumer) -> None:
        self._consumers = consumers

    def collect(self) -> Iterator[Metric]:
        messages = CounterMetricFamily(
            "duemq_consumer_messages", "Messages by outcome: done, retried, dead, skipped.",
            labels=("group", "topic", "outcome"),
        )  # fmt: skip
        in_hand = GaugeMetricFamily(
            "duemq_consumer_in_hand_messages", "Messages pulled and not done.", labels=("group",)
        )
        in_hand_bytes = GaugeMetricFamily(
            "duemq_consumer_in_hand_bytes",
            "Bytes of their keys, values and (estimated) headers.",
            labels=("group",),
        )
        paused = GaugeMetricFamily("duemq_consumer_paused", "1 while a handler's pause lasts.", labels=("group",))
        differing = GaugeMetricFamily(
            "duemq_consumer_mismatches",
            "Differences between the group's subscriptions.",
            labels=("group",),
        )
        by_partition = ("group", "topic", "partition")
        commit = GaugeMetricFamily("duemq_consumer_commit_offset", "First message not done.", labels=by_partition)
        pull = GaugeMetricFamily("duemq_consumer_pull_offset", "Next message to fetch.", labels=by_partition)
        for consumer in self._consumers:
            group = consumer.group
            for (topic, outcome), count in consumer.counts.items():
                messages.add_metric((group, topic, outcome), count)
            in_hand.add_metric((group,), consumer.in_hand)
            paused.add_metric((group,), consumer.paused)
            differing.add_metric((group,), len(consumer.mismatches))
            in_hand_bytes.add_metric((group,), consumer.in_hand_bytes)
            for (topic, partition), place in consumer.places.items():
                commit.add_metric((group, topic, str(partition)), place.commit)
                pull.add_metric((group, topic, str(partition)), place.pull)
        yield from (messages, in_hand, in_hand_bytes, paused, differing, commit, pull)
