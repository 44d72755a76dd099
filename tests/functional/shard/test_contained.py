"""What goes wrong with one shard, and a disk that is full: the node stays, says so, and goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duemq.bus.base import Batches, UnknownTopic
from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.topics.internal_topics import LEDGER
from duemq.model.disk_use import DiskUse
from duemq.model.errors import DiskFull
from duemq.model.messages.message import Draft
from tests.support.node.memory_nodes import ManualClock, MemoryNode, values

pytestmark = pytest.mark.anyio

CLOCK = ManualClock()
GIB = 1 << 30


def draft(text: str, delay_ms: int = 0) -> Draft:
    return Draft("orders", text.encode(), CLOCK() + delay_ms)


def node(log: MemoryLog, path: Path, **options: Any) -> MemoryNode:
    return MemoryNode(log, path, clock=CLOCK, **options)


def new_log() -> MemoryLog:
    return MemoryLog(CLOCK)


def failing_once(error: Exception) -> Callable[[MemoryLog], MemoryBus]:
    """A bus whose first commit of a delivery fails; nothing is written then."""
    failures = [error]

    def refuse(batches: Batches) -> None:
        topics = {topic for topic, _ in batches}
        if failures and topics >= {"orders", LEDGER}:
            raise failures.pop()

    return lambda log: MemoryBus(log, refuse=refuse)


@pytest.mark.parametrize(
    ("failure", "told"),
    [(KeyError("a bug"), "KeyError('a bug')"), (asyncio.CancelledError(), "StrayCancellation(")],
    ids=["bug", "stray cancellation"],
)
async def test_an_unforeseen_failure_of_a_shard_is_contained(
    failure: BaseException, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = new_log()
    async with node(log, tmp_path / "a") as a:
        await a.lead()
        shard, replica = a.shard, a.shard.replica

        def expand(now: int) -> bool:
            raise failure

        replica.expand = expand  # type: ignore[method-assign]
        await a.until(lambda: a.node.health.unfit, "the failure to be noticed")
        assert told in (a.node.why_not_ready or "")
        assert "shard 0 failed: it is opened again" in caplog.text and "in expand" in caplog.text
        await a.until(lambda: a.shard is not shard and a.shard.leading, "the shard to be opened again, and led")
        assert a.metrics.get_sample_value("duemq_failures_total", {"where": "shard 0"}) == 1
        await a.ready()
        await a.gateway.send([draft("m1")])
        await a.until(lambda: values(log, "orders") == ["m1"], "its delivery")


async def test_a_topic_that_goes_while_a_commit_is_under_way_stops_nobody(tmp_path: Path) -> None:
    log = new_log()

    def delivered() -> bool:
        CLOCK.now += 1_000  # a topic that refused is asked again after a while
        return values(log, "orders") == ["m1"]

    async with node(log, tmp_path / "a", bus=failing_once(UnknownTopic("orders"))) as a:
        await a.lead()
        await a.gateway.send([draft("m1")])
        await a.until(delivered, "its delivery")
        await a.ready()
        assert not a.metrics.get_sample_value("duemq_failures_total", {"where": "shard 0"}), "it was foreseen"


async def test_failures_with_success_between_them_are_none_in_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is deleted again and again costs all others no more the tenth time than the first."""
    monkeypatch.setattr("duemq.delay.shard.shard._BACK_OFF_S", (0.0, 3_600.0))
    monkeypatch.setattr("duemq.delay.shard.shard._WELL_S", 0.0)
    log, failures = new_log(), 0

    def refuse(batches: Batches) -> None:
        nonlocal failures
        topics = {topic for topic, _ in batches}
        if failures < 3 and topics >= {"orders", LEDGER}:
            failures += 1
            raise UnknownTopic("orders")

    def delivered() -> bool:
        CLOCK.now += 1_000
        return values(log, "orders") == ["m1"]

    async with node(log, tmp_path / "a", bus=lambda log: MemoryBus(log, refuse=refuse)) as a:
        await a.lead()
        await a.gateway.send([draft("m1")])
        await a.until(delivered, "its delivery")
    assert failures == 3


async def test_a_node_on_a_full_disk_claims_nothing_until_there_is_space(tmp_path: Path) -> None:
    log, opened = new_log(), 0
    bus = failing_once(DiskFull("no space left on device"))

    def counted(log: MemoryLog) -> MemoryBus:
        nonlocal opened
        opened += 1
        return bus(log)

    async with node(log, tmp_path / "a", bus=counted) as a:
        await a.lead()
        use = DiskUse(99 * GIB, 0)
        a.node.maintenance._measure = lambda path: use
        epochs = dict(log.epochs)
        await a.gateway.send([draft("m1")])
        await a.until(lambda: "no space left" in (a.node.why_not_ready or ""), "the disk to be full")
        await asyncio.wait([a.running], timeout=3)
        assert opened == 1 and log.epochs == epochs, "it was opened again on the full disk"
        use = DiskUse(50 * GIB, 49 * GIB)
        await a.until(lambda: values(log, "orders") == ["m1"], "the delivery, once there is space")
        assert opened == 2
