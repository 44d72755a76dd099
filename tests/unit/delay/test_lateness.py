"""Lateness of topics: quantiles of the latest deliveries, and memory that does not grow with time or topics."""

from __future__ import annotations

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from duemq.delay.core.outbox import Outbox
from duemq.delay.lateness import Lateness
from duemq.delay.metrics import Observer
from duemq.model.key import make_key
from duemq.model.ledger import Entry


@pytest.mark.parametrize("part", [1, 7, 999, 30_000])
def test_quantiles_are_those_of_the_latest_20_000(part: int) -> None:
    values = np.arange(45_000)
    lateness = Lateness()
    for start in range(0, len(values), part):
        lateness.add(values[start : start + part])
        if start == 0:
            assert lateness.summary()["p50_ms"] == round(float(np.percentile(values[:part][-20_000:], 50)), 1)
    latest = values[-20_000:]
    p50, p99 = np.percentile(latest, (50, 99))
    assert lateness.summary() == {
        "count": 45_000, "p50_ms": round(p50, 1), "p99_ms": round(p99, 1), "max_ms": 44_999,
    }  # fmt: skip
    assert lateness.buckets.sum() == 45_000 and lateness.total_ms == values.sum()
    assert lateness._latest.nbytes == 80_000


@pytest.mark.parametrize("part", [1, 3, 300])
def test_deliveries_are_counted_the_same_whether_one_at_a_time_or_many(part: int) -> None:
    dues = list(range(1_000))
    noted, added = Lateness(), Lateness()
    for start in range(0, len(dues), part):
        some = dues[start : start + part]
        noted.note([make_key(due, 0, 0) for due in some], 1_000 + start)
        added.add(1_000 + start - np.array(some))
    noted.count()
    assert (noted.buckets == added.buckets).all() and noted.at_ms == 1_000 + start
    assert (noted.total_ms, noted.summary()) == (added.total_ms, added.summary())


def test_of_many_topics_those_that_got_something_last_are_remembered() -> None:
    observer = Observer(CollectorRegistry())

    def deliver(topic: str) -> None:
        outbox = Outbox(0, {topic: 1})
        outbox.keys[topic] = [make_key(1, 1, 0)]
        observer.cycle(0, Entry(0, 0, b"", 0), outbox, commands=0, started=0, ended=5)

    for number in range(1_000):
        deliver(f"t{number}")
    deliver("t0")
    for number in range(1_000, 1_500):
        deliver(f"t{number}")
    assert len(observer.lateness) == 1_000
    assert "t0" in observer.lateness and "t1" not in observer.lateness and "t1499" in observer.lateness
    assert observer.lateness["t0"].summary()["count"] == 2
