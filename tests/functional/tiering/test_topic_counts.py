"""Pending messages are counted by topic to the last one: in RocksDB and delay files, after a kill, after an upgrade."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from duemq.bus.memory import MemoryLog
from duemq.cluster.topics.internal_topics import BUFFER
from duemq.delay.core.limits import CycleLimits
from duemq.delay.indexing.topic_counter import TopicCounter
from duemq.delay.replica.retention import purge_before
from duemq.delay.tiering.completion import complete_windows
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.model.messages.import_command import import_frame
from duemq.model.messages.message import CANCEL, DELIVER_NOW, MOVE, Change, Draft
from duemq.model.timing import LAST_MS, WINDOW_MS
from duemq.proxy.gateway.base import Receipt
from duemq.storage.delay_files import imported_file
from duemq.storage.keyspace import TOPIC_COUNT
from duemq.storage.shard.topic_counts import TopicCount
from tests.support.node.memory_nodes import MemoryNode
from tests.support.shard.import_schedule import write_messages
from tests.support.shard.shard_world import SHARD, START, SimNode, World

pytestmark = pytest.mark.anyio
FIRST = (START // WINDOW_MS + 5) * WINDOW_MS
COUNT = 40


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[SimNode]:
    """A master with 20 messages of each of two topics in a delay file, and one of each in RocksDB."""
    policy, limits = TieringPolicy(rows=COUNT, quiet_ms=0), CycleLimits(max_commands=1_000, max_messages=1_000)
    world = World(tmp_path, limits, {"one": 1, "two": 1}, delay_files=policy)
    await world.start(1)
    (node,) = world.nodes
    await node.promote()
    await world.produce([Draft(("one", "two")[n % 2], b"p", FIRST + n) for n in range(COUNT)])
    await world.tick(node)
    await node.delay_files.step()
    assert node.store.delay_files.messages == COUNT
    await world.produce([Draft(topic, b"p", FIRST + WINDOW_MS) for topic in ("one", "two")])
    await world.tick(node)
    node.store.flush()
    yield node
    world.close()


async def cancel(node: SimNode, count: int) -> None:
    """Cancel messages of topic one in the delay file."""
    keys = list(node.world.oracle.messages)[: 2 * count : 2]
    await node.world.produce([Change(CANCEL, key, 0) for key in keys])
    await node.world.tick(node)


async def count_again(node: SimNode) -> None:
    while await TopicCounter(SHARD, node.replica).step():
        pass


async def test_a_cancel_in_a_delay_file_counts_once_its_row_is_read(node: SimNode) -> None:
    await cancel(node, 3)
    assert node.store.topic_counts.of("one") == TopicCount(21, 3)
    await complete_windows(node.store, [FIRST])
    assert node.store.topic_counts.of("one") == TopicCount(18, 0)
    assert node.store.topic_counts.listed() == {"one": 18, "two": 21}


async def test_it_counts_also_where_it_is_forgotten_before_its_row_is_read(node: SimNode) -> None:
    await cancel(node, 3)
    node.world.now += 3 * WINDOW_MS
    for _ in purge_before(node.store, 0, node.world.now // WINDOW_MS * WINDOW_MS):
        pass
    await complete_windows(node.store, [FIRST])
    assert node.store.topic_counts.of("one") == TopicCount(18, 0)


async def test_counts_are_there_after_a_kill(node: SimNode) -> None:
    await cancel(node, 3)
    node.store.flush()
    node.kill()
    assert node.store.topic_counts.built, "nothing is counted again"
    await node.promote()
    await complete_windows(node.store, [FIRST])
    assert node.store.topic_counts.listed() == {"one": 18, "two": 21}


async def test_what_an_older_version_left_is_counted_again_beside_the_cycles(node: SimNode) -> None:
    """It knows no counts: those from before it ran stay as they were."""
    await cancel(node, 3)
    node.store.drop(TOPIC_COUNT, b"", b"\x01")
    node.store.flush()
    node.kill()
    await node.promote()
    assert node.store.topic_counts.of("one") is None
    await cancel(node, 5)
    await TopicCounter(SHARD, node.replica).step()
    await cancel(node, 6)
    await count_again(node)
    await complete_windows(node.store, [FIRST])
    assert node.store.topic_counts.listed() == {"one": 15, "two": 21}
    node.world.check(node)


async def test_counts_of_before_show_although_no_cycle_came_between(node: SimNode) -> None:
    """The older version read the rows of cancelled messages, which changes counts and makes no ledger entry."""
    await cancel(node, 3)
    (state,) = node.store.get_many([TOPIC_COUNT])
    await complete_windows(node.store, [FIRST])
    assert state is not None
    node.store.db.put(TOPIC_COUNT, state)
    node.store.flush()
    node.kill()
    assert not node.store.topic_counts.built
    await count_again(node)
    assert node.store.topic_counts.listed() == {"one": 18, "two": 21}


async def test_a_file_with_too_many_topics_has_all_counted_again(
    node: SimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imported_file, "MAX_TOPICS", 1)
    for number, topics in enumerate((("one",), ("one", "two", "three"))):
        drafts = [Draft(topic, b"p", FIRST + (3 + number) * WINDOW_MS + n) for n, topic in enumerate(topics)]
        command = write_messages(node.world.shared / f"{number}.parquet", drafts)
        await node.world.producer.append({(BUFFER, SHARD): [import_frame(command)]})
        assert node.master is not None
        await node.master.tick()
        assert await node.importer.step()
        await node.master.tick()
        assert node.store.topic_counts.built is (number == 0)
    await count_again(node)
    assert node.store.topic_counts.listed() == {"one": 23, "two": 22, "three": 1}


async def test_a_count_sees_what_was_accepted_before_and_tells_nothing_of_other_topics(tmp_path: Path) -> None:
    log = MemoryLog()
    async with MemoryNode(log, tmp_path) as node:
        await node.lead()
        await node.node.bus.create_topic("one", 1)
        gateway = node.gateway
        drafts = [Draft("one" if n % 3 else "two", b"p", LAST_MS - 1) for n in range(9)]
        ids = [receipt.id for receipt in await gateway.send(drafts) if isinstance(receipt, Receipt)]
        assert [await gateway.pending(topic) for topic in ("one", "two", "no")] == [(6, 0), (3, 0), (0, 0)]
        await gateway.change(CANCEL, [ids[0]])
        await gateway.change(MOVE, [ids[1]], LAST_MS - 2)
        await gateway.change(DELIVER_NOW, [ids[2]])
        assert [await gateway.pending(topic) for topic in ("one", "two")] == [(5, 0), (2, 0)]
        value: Any = node.metrics.get_sample_value
        assert value("duemq_topic_pending_messages", {"topic": "one"}) == 5
    async with MemoryNode(log, tmp_path) as node:
        await node.lead()
        assert await node.gateway.pending("one") == (5, 0)
