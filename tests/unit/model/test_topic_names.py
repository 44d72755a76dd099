"""The names of one cluster on shared brokers never meet those of another."""

from __future__ import annotations

from itertools import product

import pytest

from duemq.model.messages.message import is_topic
from duemq.model.topics.topic_names import OWN, TopicNames, is_cursor_group, is_of_another, prefix_of

PARTS = ("buffer", "ledger", "admin", "jobs", "trail", "relays", "clock", "dlq")
OWN_NAMES = [OWN + part for part in PARTS] + [f"{lead}destination.mail" for lead in ("", "retry.", "dlq.")]
CLUSTERS = ("duemq", "staging", "a", "a.b", "a.b.buffer", "buffer", "destination", "destination.mail", "retry")
NAMES = {cluster: TopicNames(prefix_of(cluster)) for cluster in CLUSTERS}


def test_each_cluster_has_names_of_its_own_and_finds_them_again() -> None:
    on_brokers = [names.on_brokers(name) for names, name in product(NAMES.values(), OWN_NAMES)]
    assert len(set(on_brokers)) == len(on_brokers)
    for names, name in product(NAMES.values(), OWN_NAMES):
        assert names.own(names.on_brokers(name)) == name
    assert len({names.cursors for names in NAMES.values()}) == len(CLUSTERS)
    assert all(is_cursor_group(names.cursors + "billing") for names in NAMES.values())


def test_a_cluster_does_not_see_what_is_of_another() -> None:
    for cluster, other, name in product(CLUSTERS, CLUSTERS, OWN_NAMES):
        if cluster == other:
            continue
        seen = NAMES[cluster].own(NAMES[other].on_brokers(name))
        assert seen is None or (seen not in OWN_NAMES and is_of_another(seen))


def test_topics_of_messages_are_the_same_for_all() -> None:
    for names, topic in product(NAMES.values(), ("orders", "retry.shop", "dlq.shop", "duemqs", "destinations.x")):
        assert names.on_brokers(topic) == names.own(topic) == topic


def test_the_default_cluster_has_the_names_it_always_had() -> None:
    assert [NAMES["duemq"].on_brokers(name) for name in OWN_NAMES] == OWN_NAMES
    assert NAMES["duemq"].cursors == "duemq-place-"


@pytest.mark.parametrize("name", OWN_NAMES)
def test_nobody_sends_into_another_cluster(name: str) -> None:
    for cluster in CLUSTERS[1:]:
        assert not is_topic(NAMES[cluster].on_brokers(name).encode())
