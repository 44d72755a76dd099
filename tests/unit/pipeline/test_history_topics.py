"""Which topics a history subscribes to. Spark looks for the pattern anywhere in a name, as `re.search` does."""

from __future__ import annotations

import re

import pytest

from duemq.bus.kafka.clock.clock_topic import CLOCK_TOPIC
from duemq.bus.kafka.options import KafkaOptions
from duemq.cluster.topics.internal_topics import INTERNAL, LEDGER
from duemq.model.topics.topic_names import TopicNames
from duemq.pipeline.history.stream import ALL, LogSource, pattern

OWN = {*INTERNAL, CLOCK_TOPIC, "duemq.dlq"}
TARGETS = {"orders", "orders.retry", "reorders-eu", "retry.billing", "destination.shop", "retry.destination.shop"}
LETTERS = {"dlq.billing", "dlq.destination.shop"}
OF_EU = {"duemq.eu.ledger", "duemq.eu.dlq", "duemq.eu.destination.shop", "retry.duemq.eu.destination.shop"}
LETTERS_OF_EU = {"dlq.duemq.eu.destination.shop"}
OF_US = {name.replace("eu", "us") for name in OF_EU | LETTERS_OF_EU}
KAFKAS_OWN = {"__consumer_offsets", "__transaction_state"}
THERE = OWN | TARGETS | LETTERS | OF_EU | LETTERS_OF_EU | OF_US | KAFKAS_OWN | {"duemq.eu.buffer", "duemq.eu.clock"}


def subscribed(topics: str | None, prefix: str = "duemq.", dead_letters: str = "duemq.dlq") -> set[str]:
    source = LogSource(KafkaOptions("k:1", names=TopicNames(prefix)), topics, dead_letters=dead_letters)
    return {name for name in THERE if re.search(pattern(source), name)}


@pytest.mark.parametrize(
    ("topics", "targets"),
    [
        (None, TARGETS),
        (ALL, TARGETS | LETTERS),
        ("orders", {"orders"}),
        ("orders|dlq[.].*", {"orders"} | LETTERS),
        ("duemq.*|.*uemq[.]buffer|__.*", set()),
    ],
)
def test_none_of_duemqs_own_topics_but_ledger_and_dead_letters(topics: str | None, targets: set[str]) -> None:
    assert subscribed(topics) == {LEDGER, "duemq.dlq"} | targets
    assert subscribed(topics, dead_letters="reorders-eu") == {LEDGER, "reorders-eu"} | targets


@pytest.mark.parametrize(
    ("topics", "targets"),
    [
        (None, {"orders", "orders.retry", "reorders-eu", "retry.billing"} | OF_EU),
        (ALL, {"orders", "orders.retry", "reorders-eu", "retry.billing", "dlq.billing"} | OF_EU | LETTERS_OF_EU),
        ("destination[.].*", {"duemq.eu.destination.shop"}),
        ("orders", {"orders"}),
    ],
)
def test_of_destinations_those_of_this_cluster(topics: str | None, targets: set[str]) -> None:
    assert subscribed(topics, "duemq.eu.") == {"duemq.eu.ledger", "duemq.eu.dlq"} | targets
