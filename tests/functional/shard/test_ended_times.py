"""What is read of messages that have ended, of which a dead letter keeps its payload: bounded in bytes."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import pytest

from duemq.bus.base import wall_clock
from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.topics.internal_topics import LEDGER
from duemq.delay.node_backend import NodeBackend
from duemq.delay.reads.shard_reads import Reads
from duemq.model.log.ledger import Answer, Entry, read_ledger
from duemq.model.messages.message import REDRIVE, Draft, Terms
from duemq.model.messages.record import unpack_record
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.gateway.gateway import CommandGateway
from tests.support.http.proxy_site import running_node

MESSAGES, PAYLOAD = 40, b"x" * (1 << 20)


def test_the_times_of_many_ended_messages_take_the_memory_of_one(tmp_path: Path) -> None:
    async def scenario() -> int:
        async with running_node(tmp_path / "data", MemoryLog(), "", 1, 0.0) as node:
            gateway, now = CommandGateway(NodeBackend(node)), wall_clock()
            await node.bus.create_topic("orders", 1)
            expired = Draft("orders", PAYLOAD, now - 10, expires=now - 10)
            drafts = [Draft("orders", PAYLOAD, now - 10), expired] * (MESSAGES // 2)
            ids: list[str] = []
            for start in range(0, MESSAGES, 4):
                for receipt in await gateway.send(drafts[start : start + 4]):
                    assert not isinstance(receipt, Exception)
                    ids.append(receipt.id)
            await gateway.state(ids[-1])
            keys = [message_id.key for message_id in map(node.ids.read, ids) if message_id is not None]
            reads = Reads(node.shards[0])
            tracemalloc.start()
            times = await reads.when_ended(keys)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert times == [state.delivered_at or state.dead_at for state in await reads.heads(keys) if state]
            assert len(times) == MESSAGES and min(times) >= now
            return peak

    peak = asyncio.run(scenario())
    assert peak < 8 * len(PAYLOAD), f"{peak >> 20} MiB"


def test_a_cycle_redrives_no_more_dead_letters_than_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_trim(bus: MemoryBus, topic: str, partition: int, before: int) -> None:
        """A slow machine would trim entries of the ledger before they are counted here."""

    monkeypatch.setattr(MemoryBus, "trim", no_trim)

    async def scenario() -> list[int]:
        async with running_node(tmp_path / "data", MemoryLog(), "", 1, 0.0) as node:
            gateway, now = CommandGateway(NodeBackend(node)), wall_clock()
            await node.bus.create_topic("orders", 1)
            ids: list[str] = []
            for _ in range(0, 120, 4):
                drafts = [Draft("orders", PAYLOAD, now - 10, expires=now - 10)] * 4
                ids += [receipt.id for receipt in await gateway.send(drafts) if isinstance(receipt, Receipt)]
            await gateway.state(ids[-1])
            outcomes = await gateway.change(REDRIVE, ids, terms=Terms())
            assert [outcome.answer for outcome in outcomes] == [Answer.OK] * 120
            records = await node.bus.read(LEDGER, 0, 0, 1_000)
            entries = [read_ledger(unpack_record(record.frame).payload) for record in records]
            return [len(entry.answers) for entry in entries if isinstance(entry, Entry)]

    answers = asyncio.run(scenario())
    assert sum(answers) == 120 and max(answers) <= 48, "32 MiB, and what was read together with the last of them"
