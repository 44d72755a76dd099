"""Jobs that change the same messages: what a step has done is done once, whatever other jobs came after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from duemq.bus.base import wall_clock
from duemq.bus.memory import MemoryLog
from duemq.delay.node import Node
from duemq.delay.node_backend import NodeBackend
from duemq.model.log.job import new_id
from duemq.model.log.ledger import Answer
from duemq.model.messages.message import CANCEL, MOVE, Draft, Terms
from duemq.model.messages.row_notes import MAX_TAGS
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.gateway.gateway import CommandGateway
from tests.support.http.proxy_site import running_node

HOUR_MS = 3_600_000


def with_gateway(folder: Path, scenario: Callable[[CommandGateway, Node], Awaitable[None]]) -> None:
    async def run() -> None:
        async with running_node(folder / "data", MemoryLog(), "", 1, 0.0) as node:
            await node.bus.create_topic("orders", 1)
            await scenario(CommandGateway(NodeBackend(node)), node)

    asyncio.run(run())


def test_a_step_that_is_sent_again_does_not_undo_a_later_job(tmp_path: Path) -> None:
    async def scenario(gateway: CommandGateway, node: Node) -> None:
        now = wall_clock()
        (sent,) = await gateway.send([Draft("orders", b"pay", now + 5 * HOUR_MS)])
        assert isinstance(sent, Receipt)

        async def move(job: str, step: int, hours: int) -> Answer | None:
            (outcome,) = await gateway.change(MOVE, [sent.id], now + hours * HOUR_MS, terms=Terms(f"{job}/{step}"))
            return outcome.answer

        async def due_in_hours() -> int:
            state = await gateway.state(sent.id)
            assert state is not None
            return (state.due - now) // HOUR_MS

        first, *later = [new_id(now + begun) for begun in range(MAX_TAGS + 2)]
        assert [await move(first, 0, 1), await move(first, 0, 1)] == [Answer.OK, Answer.REPEATED]
        for number, job in enumerate(later):
            assert await move(job, 0, 9 + number) is Answer.OK
            # Of more jobs than a message tells of, it is not known what the first of them did; it is not done again.
            known = number + 1 < MAX_TAGS
            assert await move(first, 0, 1) is (Answer.REPEATED if known else Answer.CHANGED_BEFORE)
            assert await move(first, 1, 1) is Answer.CHANGED_BEFORE
            assert await due_in_hours() == 9 + number
        (outcome,) = await gateway.change(CANCEL, [sent.id], terms=Terms(f"{new_id(now + HOUR_MS)}/0"))
        assert outcome.answer is Answer.OK
        assert await move(later[-1], 0, 1) is Answer.CANCELLED_BEFORE

    with_gateway(tmp_path, scenario)
