"""Where there is little to do, nobody waits for an answer while a shard gathers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from duemq.bus.memory import MemoryLog
from duemq.delay.node_backend import NodeBackend
from duemq.model.ledger import Answer
from duemq.model.message import CANCEL, Draft
from duemq.model.timing import LAST_MS
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.gateway.gateway import CommandGateway
from tests.support.http.proxy_site import running_node

_GATHERS_S = 4.0


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
