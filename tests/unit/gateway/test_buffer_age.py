"""New messages are refused before a log drops commands that nobody has read."""

from __future__ import annotations

import pytest

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.topics.internal_topics import BUFFER
from duemq.proxy.gateway.buffer_age import BufferAge
from tests.support.node.memory_nodes import ManualClock

pytestmark = pytest.mark.anyio

RETENTION_MS = 60_000


async def test_commands_that_grow_old_have_new_ones_refused() -> None:
    clock = ManualClock()
    bus = MemoryBus(MemoryLog(clock))
    await bus.create_topic(BUFFER, 2)
    age = BufferAge(RETENTION_MS, clock)
    await age.refresh(bus, {0: 0, 1: 0})
    assert age.why_refused(1) is None, "there are no commands"
    await bus.append({(BUFFER, 1): [b"a", b"b"]})
    clock.now += RETENTION_MS // 2
    await age.refresh(bus, {0: 0, 1: 0})
    assert age.why_refused(1) is None, "they are just as old as they may be"
    clock.now += 1
    await age.refresh(bus, {0: 0, 1: 0})
    assert "shard 1 has not applied its commands for 30 s" in (age.why_refused(1) or "")
    assert age.why_refused(0) is None, "the other shard takes messages"
    await bus.append({(BUFFER, 1): [b"c"]})
    await age.refresh(bus, {0: 0, 1: 1})
    assert age.why_refused(1) is not None, "one of the two is left"
    await age.refresh(bus, {0: 0, 1: 2})
    assert age.why_refused(1) is None, "the young one may wait"
