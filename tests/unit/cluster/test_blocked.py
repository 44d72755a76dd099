"""An open transaction on duemq's own topics is told by shard, in metrics and among the troubles of topics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from duemq.bus.base import BlockingTransaction
from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.topics.blocked import BlockedCollector, blocked_shards
from duemq.cluster.topics.internal_topics import ADMIN, BUFFER
from duemq.cluster.topics.topic_states import TopicStates
from duemq.model.messages.record import Partition
from duemq.model.readiness import Reason, ShardTrouble

NOW = 60_000
STRANGER = BlockingTransaction(4003, "a-user", 17, 30_000)


class BlockedBus(MemoryBus):
    def blocked(self) -> Mapping[Partition, BlockingTransaction]:
        return {(BUFFER, 2): STRANGER, (ADMIN, 0): STRANGER._replace(producer_id=-1, transactional_id="")}


def test_a_blocked_partition_is_told_of_its_shard_with_the_producer_and_since_when() -> None:
    async def run() -> None:
        bus = BlockedBus(MemoryLog(lambda: NOW))
        assert blocked_shards(bus) == {2: ShardTrouble(Reason.BLOCKED, producer=4003, since=30_000)}
        registry = CollectorRegistry()
        registry.register(BlockedCollector(lambda: bus, lambda: NOW))
        labels = {"topic": BUFFER, "partition": "2", "producer": "4003"}
        assert registry.get_sample_value("duemq_blocked_seconds", labels) == 30
        troubles = TopicStates(bus, 0).troubles(NOW)
        assert "partition 2 is not read after offset 17" in troubles[BUFFER]
        assert "producer 4003 (transactional id 'a-user') is open there since 1970-01-01T00:00:30" in troubles[BUFFER]
        assert "a producer that brokers do not name" in troubles[ADMIN]

    asyncio.run(run())


def test_a_process_without_a_log_has_nothing_blocked() -> None:
    registry = CollectorRegistry()
    registry.register(BlockedCollector(lambda: None, lambda: NOW))
    assert [family.samples for family in registry.collect()] == [[]]
