"""How far partitions go, where what a broker says contradicts what was committed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import pytest

from duemq.bus.base import Partition
from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.options import KafkaOptions

COMMITTED = 2_075


class Broker:
    """In place of the wire: it says where each partition ends, until somebody asks who leads."""

    def __init__(self, deposed: int, leader: int) -> None:
        self.said, self.leader = deposed, leader

    async def offsets(self, partitions: Iterable[Partition], at: int) -> dict[Partition, int]:
        return dict.fromkeys(partitions, self.said)

    async def refresh(self) -> None:
        self.said = self.leader


def bus_beside(broker: Any, own: bool) -> KafkaBus:
    bus = KafkaBus(KafkaOptions("nowhere:9092"), lambda: time.time_ns() // 1_000_000)
    bus._wire = broker

    async def exists(topic: str, partition: int) -> bool:
        return True

    bus._exists = exists  # type: ignore[method-assign]
    if own:
        bus._own["t"] = 1
    bus._ends.set(("t", 0), COMMITTED)
    return bus


def test_a_deposed_leader_is_not_asked_again_where_what_was_committed_ends() -> None:
    async def test() -> None:
        bus = bus_beside(Broker(deposed=2_072, leader=2_080), own=True)
        assert await bus.end_offset("t", 0) == 2_080
        assert bus._ends.known(("t", 0)) == 2_080

    asyncio.run(test())


@pytest.mark.parametrize(("own", "known"), [(True, COMMITTED), (False, 2_072)])
def test_what_was_committed_to_an_own_topic_stays_known_whatever_a_broker_says(own: bool, known: int) -> None:
    """`Tails` looks for another leader only while it knows that there is more than it got.

    A new master beside a deposed leader waited five minutes for it, for its node measured its lag meanwhile.
    """

    async def test() -> None:
        bus = bus_beside(Broker(deposed=2_072, leader=2_072), own)
        assert await bus.end_offset("t", 0) == 2_072
        assert bus._ends.known(("t", 0)) == known

    asyncio.run(test())
