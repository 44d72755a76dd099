"""The answers of a shard that changes hands: no number of them stops it."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from duemq.bus.memory import MemoryLog
from duemq.cluster.shards.progress import Progress
from duemq.delay.shard import shard
from duemq.model.log.ledger import Answer
from duemq.model.messages.message import CANCEL, Draft
from duemq.proxy.gateway.base import Receipt
from tests.support.node.memory_nodes import MemoryNode

pytestmark = pytest.mark.anyio

KEEP, PART = 400, 100


async def answers(node: MemoryNode, number: int) -> None:
    """Schedule and cancel this many messages."""
    due = time.time_ns() // 1_000_000 + 3_600_000
    for _ in range(number // PART):
        sent = await node.gateway.send([Draft("orders", b"x", due)] * PART)
        outcomes = await node.gateway.change(CANCEL, [one.id for one in sent if isinstance(one, Receipt)])
        assert {outcome.answer for outcome in outcomes} == {Answer.OK}


async def test_a_shard_goes_on_after_hand_overs_however_many_answers_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard, "Progress", partial(Progress, keep=KEEP))
    log = MemoryLog()
    async with MemoryNode(log, tmp_path / "a") as a, MemoryNode(log, tmp_path / "b") as b:
        await a.node.bus.create_topic("orders", 1)
        await a.lead()
        for old, new in ((a, b), (b, a), (a, b)):
            await answers(old, PART)
            old.election.give()
            await new.lead()
        await answers(b, 3 * KEEP)
        for node in (a, b):
            assert node.metrics.get_sample_value("duemq_failures_total", {"where": "shard 0"}) in (None, 0)
            assert not node.election.health or not node.election.health.unfit
