"""How far partitions go, where what a broker says contradicts what was committed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import RequestTimedOutError
from aiokafka.protocol.metadata import MetadataRequest

from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.options import KafkaOptions
from duemq.bus.kafka.requests.wire import Wire
from duemq.bus.kafka.topics.catalog import TopicMetadata
from duemq.model.errors import LogFailed
from duemq.model.messages.record import Partition

COMMITTED = 2_075


class Broker:
    """In place of the wire: it says where each partition ends, until somebody asks who leads."""

    def __init__(self, deposed: int, leader: int) -> None:
        self.said, self.leader = deposed, leader

    async def offsets(self, partitions: Iterable[Partition], at: int) -> dict[Partition, int]:
        return dict.fromkeys(partitions, self.said)

    async def refresh(self) -> None:
        self.said = self.leader

    async def recall(self, topic: str) -> TopicMetadata:
        return TopicMetadata(1, 100_000, 0)


def bus_beside(broker: Any, own: bool) -> KafkaBus:
    bus = KafkaBus(KafkaOptions("nowhere:9092"), lambda: time.time_ns() // 1_000_000)
    bus.wire, bus.catalog = broker, broker

    if own:
        bus.own["t"] = 1
    bus.ends.set(("t", 0), COMMITTED)
    return bus


class Brokers:
    """An AIOKafkaClient with three brokers. `said`: whom each takes for the leader; `ends`: what each says."""

    def __init__(self, said: dict[int, int | None], ends: dict[int, int]) -> None:
        self.said, self.ends = said, ends
        self.cluster = SimpleNamespace(brokers=lambda: [SimpleNamespace(nodeId=number) for number in said])

    async def send(self, node: int, request: Any, group: Any = None) -> Any:
        if isinstance(request, MetadataRequest):
            leader = self.said[node]
            if leader is None:
                raise RequestTimedOutError
            return SimpleNamespace(topics=[(0, "t", False, [(0, 0, leader, [1, 2, 3], [1, 2, 3])])])
        return SimpleNamespace(topics=[("t", [(0, 0, -1, self.ends[node])])])

    def force_metadata_update(self) -> asyncio.Future[bool]:
        done = asyncio.get_running_loop().create_future()
        done.set_result(True)
        return done


@pytest.mark.parametrize(
    ("said", "end"),
    [
        pytest.param({1: 1, 2: 1, 3: 1}, 10, id="all agree"),
        pytest.param({1: None, 2: 2, 3: 2}, 12, id="one is away"),
        pytest.param({1: 1, 2: 2, 3: 2}, None, id="one was deposed and does not know it"),
        pytest.param({1: 1, 2: None, 3: None}, None, id="only one answers"),
        pytest.param({1: -1, 2: -1, 3: -1}, None, id="no leader"),
    ],
)
def test_how_far_a_log_goes_is_only_said_where_the_brokers_agree_who_leads(
    said: dict[int, int | None], end: int | None
) -> None:
    async def test() -> None:
        wire = Wire(KafkaOptions("nowhere:9092", request_timeout_ms=200).client())
        wire.client = Brokers(said, {1: 10, 2: 12, 3: 13})
        if end is None:
            with pytest.raises(LogFailed):
                await wire.sure_end(("t", 0), committed=True)
        else:
            assert await wire.sure_end(("t", 0), committed=True) == end

    asyncio.run(test())


def test_a_deposed_leader_is_not_asked_again_where_what_was_committed_ends() -> None:
    async def test() -> None:
        bus = bus_beside(Broker(deposed=2_072, leader=2_080), own=True)
        assert await bus.end_offset("t", 0) == 2_080
        assert bus.ends.end_of(("t", 0)) == 2_080

    asyncio.run(test())


@pytest.mark.parametrize(("own", "known"), [(True, COMMITTED), (False, 2_072)])
def test_what_was_committed_to_an_own_topic_stays_known_whatever_a_broker_says(own: bool, known: int) -> None:
    """`Fetcher` looks for another leader only while it knows that there is more than it got.

    A new master beside a deposed leader waited five minutes for it, for its node measured its lag meanwhile.
    """

    async def test() -> None:
        bus = bus_beside(Broker(deposed=2_072, leader=2_072), own)
        assert await bus.end_offset("t", 0) == 2_072
        assert bus.ends.end_of(("t", 0)) == known

    asyncio.run(test())
