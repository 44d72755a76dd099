"""`consume`: measures how fast one process consumes with a handler that does nothing, compared with plain aiokafka."""

from collections.abc import Callable
from statistics import median
from typing import Any

from duemq.bench.clients import consumers
from duemq.bench.clients import plain_kafka as plain
from duemq.bench.clients.consumers import ConsumeCost
from duemq.bench.harness.harness import Harness
from duemq.bench.report.figures import Figure, ScenarioOutcome
from duemq.bench.system.system import SiteError

_WAYS: dict[str, tuple[str, Callable[..., Any], tuple[Any, ...]]] = {
    "getmany": ("aiokafka, getmany", consumers.by_getmany, ()),
    "iterator": ("aiokafka, async for", consumers.by_iterator, ()),
    "consumer": ("Consumer", consumers.by_consumer, (None,)),
    "keyed": ("Consumer, one of a key at once", consumers.by_consumer, (1,)),
}


def consume(harness: Harness, *, count: int, rounds: int) -> ScenarioOutcome:
    """Consume `count` messages in each way in turn, `rounds` times. The figures are medians, and ratios within a
    round."""
    bootstrap, setup = harness.site.bootstrap, harness.setup
    if bootstrap is None:
        raise SiteError("consumers are measured on Kafka: use --on kafka")
    topic = f"{harness.topic}.consume"
    harness.site.create_topic(topic)
    filling = harness.spawn(plain.fill_topic, bootstrap, topic, count, setup.payload_bytes, setup.seed)
    harness.wait(filling, "filling a topic", count)
    results: dict[str, list[ConsumeCost]] = {way: [] for way in _WAYS}
    for number in range(1, rounds + 1):
        for way, (title, work, more) in _WAYS.items():
            worker = harness.spawn(work, bootstrap, topic, f"{way}-{number}", count, *more)
            results[way].append(harness.wait(worker, f"{title} ({number} of {rounds})", count))
    figures: list[Figure] = []
    for way, (title, _, _) in _WAYS.items():
        figures.append(Figure(f"{way}_rate", title, median(each.rate for each in results[way]), "msg/s"))
        cpu_us = median(each.cpu_s * 1e6 / each.count for each in results[way])
        figures.append(Figure(f"{way}_cpu_us", "  its CPU per message", cpu_us, "us"))
    figures += [
        Figure("share_getmany", "Consumer, by getmany in the same round", _share(results, "getmany"), "x"),
        Figure("share_iterator", "Consumer, by async for in the same round", _share(results, "iterator"), "x"),
    ]
    return ScenarioOutcome(tuple(figures))


def _share(results: dict[str, list[ConsumeCost]], other: str) -> float:
    return median(ours.rate / plain.rate for ours, plain in zip(results["consumer"], results[other], strict=True))
