"""What a Kafka says of its topics, as a table: for tests of what is read of it. Requests are counted."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import pytest
from aiokafka.structs import TopicPartition

from duemq.pipeline.logs import ranges
from duemq.pipeline.logs.kafka import EARLIEST, LATEST


@dataclass
class FakePartition:
    """`times`: of the records that are left, in order, from offset `start` on. `open`: so many of the last ones are of
    a transaction that is open; it ends after having been looked at `looks` times."""

    times: list[int] = field(default_factory=list)
    start: int = 0
    open: int = 0
    looks: int = 10**9

    def offset(self, time: int, committed: bool) -> tuple[int, int] | None:
        if self.open and committed:
            self.looks -= 1
            if self.looks < 0:
                self.open = 0
        end = self.start + len(self.times)
        if time == EARLIEST:
            return self.start, -1
        if time == LATEST:
            return end - (self.open if committed else 0), -1
        return next(((self.start + at, one) for at, one in enumerate(self.times) if one >= time), None)


@dataclass
class FakeKafka:
    """`configs`: of topics; those that are missing may not be asked about."""

    logs: dict[str, list[FakePartition]] = field(default_factory=dict)
    configurations: dict[str, Mapping[str, str]] = field(default_factory=dict)
    purged: dict[str, int] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)

    def topic(self, name: str, *partitions: FakePartition, **config: str) -> FakeKafka:
        self.logs[name] = list(partitions)
        self.configurations[name] = {name.replace("_", "."): value for name, value in config.items()}
        return self

    async def topics(self) -> dict[str, list[int]]:
        self.requests["topics"] += 1
        return {topic: list(range(len(partitions))) for topic, partitions in self.logs.items()}

    async def offsets(
        self, times: Mapping[TopicPartition, int], *, committed: bool = True
    ) -> dict[TopicPartition, tuple[int, int]]:
        self.requests["offsets"] += 1
        found = {where: self.logs[where.topic][where.partition].offset(at, committed) for where, at in times.items()}
        return {where: one for where, one in found.items() if one is not None}

    async def configs(self, topics: Collection[str]) -> dict[str, dict[str, str]]:
        self.requests["configs"] += 1
        return {topic: dict(self.configurations[topic]) for topic in topics if topic in self.configurations}

    async def notes(self, group: str, topics: Collection[str]) -> dict[str, str]:
        self.requests["notes"] += 1
        assert group == "duemq-place-!purges"
        return {topic: b64encode(b"%d" % self.purged[topic]).decode() for topic in topics if topic in self.purged}

    async def close(self) -> None:
        self.requests["closed"] += 1

    def answers(self, monkeypatch: pytest.MonkeyPatch) -> ranges.Logs:
        """`Logs` that ask it."""

        async def opened(options: object) -> FakeKafka:
            self.requests["opened"] += 1
            return self

        monkeypatch.setattr(ranges.PythonConnection, "open", staticmethod(opened))
        return ranges.Logs("localhost:1")


def records(times: Iterable[int], start: int = 0, open: int = 0, looks: int = 10**9) -> FakePartition:
    return FakePartition(list(times), start, open, looks)
