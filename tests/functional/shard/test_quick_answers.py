"""Where there is little to do, nobody waits for an answer while a shard gathers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from duemq.bus.memory import MemoryLog
from duemq.cluster.topics.internal_topics import BUFFER, LEDGER
from duemq.delay.node_backend import NodeBackend
from duemq.model.log.ledger import Answer
from duemq.model.messages.message import CANCEL, Draft, change_frame
from duemq.model.timing import LAST_MS
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.gateway.gateway import CommandGateway
from tests.support.http.proxy_site import running_node

_GATHERS_S, _GATHERS_LONG_S = 4.0, 60.0


def test_a_cancel_is_answered_although_the_shard_gathers(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_node(tmp_path / "data", MemoryLog(), "", 1, _GATHERS_S) as node:
            gateway = CommandGateway(NodeBackend(node))
            await node.bus.create_topic("orders", 1)
            for _ in range(3):
                (receipt,) = await gateway.send([Draft("orders", b"pay", LAST_MS - 1)])
                assert isinstance(receipt, Receipt)
                (outcome,) = await gateway.change(CANCEL, [receipt.id])
                assert outcome.answer is Answer.OK

    asyncio.run(run())


def test_in_a_cluster_answers_are_quick_although_only_proxies_know_who_waits(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_node(tmp_path / "data", MemoryLog(), "", 1, _GATHERS_LONG_S) as node:
            gateway = CommandGateway(NodeBackend(node))
            await node.bus.create_topic("orders", 1)
            first, second = await gateway.send([Draft("orders", b"pay", LAST_MS - 1)] * 2)
            assert isinstance(first, Receipt) and isinstance(second, Receipt)
            await gateway.change(CANCEL, [first.id])
            entries = node.bus.subscribe(LEDGER, 0)
            message_id = node.ids.read(second.id)
            assert message_id is not None
            await node.bus.append({(BUFFER, 0): [change_frame(CANCEL, message_id.key)]})
            async with asyncio.timeout(_GATHERS_LONG_S / 2):
                while node.shards[0].replica.entry.outcomes.cancelled < 2:
                    await entries.wait()

    asyncio.run(run())
