"""Watching topics on Kafka for those who wait: what nobody waits for is forgotten."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duemq.bus.kafka.fetch import watch
from duemq.bus.kafka.fetch.watch import Watch
from duemq.bus.kafka.requests.wire import Wire
from duemq.bus.kafka.topics.catalog import Catalog
from duemq.model.messages.record import Partition


class Brokers:
    """There is one topic, `there`, of one partition with 5 records; and how often each topic was looked for."""

    def __init__(self) -> None:
        self.looked_for: list[str] = []
        self.seen: list[tuple[Partition, int]] = []

    def last(self, topic: str) -> Any:
        return SimpleNamespace(partitions=1) if topic == "there" else None

    async def find(self, topics: list[str]) -> dict[str, Any]:
        self.looked_for += topics
        return {topic: self.last(topic) for topic in topics if topic == "there"}

    async def offsets(self, partitions: set[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 5)

    def saw(self, partition: Partition, end: int) -> None:
        self.seen.append((partition, end))


def test_topics_that_nobody_waits_for_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: now))
    brokers = Brokers()
    watching = Watch(cast(Wire, brokers), cast(Catalog, brokers), brokers.saw)

    async def scenario() -> None:
        nonlocal now
        for number in range(100):
            watching.begin((f"missing-{number}", None))
            await watching.ask()
            watching.end((f"missing-{number}", None))
        watching.begin(("there", None))
        await watching.ask()
        assert "missing-99" not in watching.missing
        now += 2
        await watching.ask()
        assert set(watching.refreshed_at) == {"there"} and not watching.missing
        assert brokers.seen == [(("there", 0), 5)] * 2

    asyncio.run(scenario())
    assert len(brokers.looked_for) == 102
