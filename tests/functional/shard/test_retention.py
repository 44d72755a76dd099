"""A node whose disk fills: what it drops, what it refuses, what goes on, and that the space comes back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from duemq.bus.embedded.bus import EmbeddedBus
from duemq.delay.core.limits import CycleLimits
from duemq.delay.node import Node, NodeOptions
from duemq.delay.node_backend import NodeBackend
from duemq.delay.recovery.verify import verify
from duemq.delay.shard.shard import Shard
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.election.base import Election, Member, NodeHealth, NodeState
from duemq.election.single import SingleElection
from duemq.model.disk_use import DiskUse
from duemq.model.errors import DiskFull
from duemq.model.log.ledger import Answer
from duemq.model.messages.message import CANCEL, MOVE, Draft
from duemq.model.messages.names import of_client
from duemq.model.timing import WINDOW_MS, window_of
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.storage.data_folder import Folder, disk_bytes
from duemq.storage.delay_files.catalog import FOLDER
from duemq.storage.keyspace import APPLIED, CURSOR, DELAY_FILE, DROPPED, LOADING, ROW
from duemq.storage.rocksdb import Memory
from tests.support.patience import WITHIN_S
from tests.support.shard.shard_world import KINDS, START, Killed

pytestmark = pytest.mark.anyio

BASE = window_of(START)
HOUR, DAY = 2 * WINDOW_MS, 48 * WINDOW_MS
TOPIC = "orders"
GB = 1 << 30


class Site:
    """A node of its own with one shard, a clock and a disk that a test sets."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.percent = folder, BASE, 10.0
        self.node: Node
        self.gateway: CommandGateway

    @property
    def shard(self) -> Shard:
        return self.node.shards[0]

    @asynccontextmanager
    async def running(self, options: NodeOptions, election: Election | None = None) -> AsyncIterator[Site]:
        folder, stop = Folder.open(self.folder, 1), asyncio.Event()
        self.metrics = CollectorRegistry()

        async def open_bus() -> EmbeddedBus:
            return await EmbeddedBus.open(self.folder / "bus", clock=lambda: self.now)

        self.node = Node(
            folder, open_bus, election or SingleElection(1), options, self.metrics, lambda: self.now,
            measure=lambda path: DiskUse(round(self.percent * GB), round((100 - self.percent) * GB)),
        )  # fmt: skip
        self.gateway = CommandGateway(NodeBackend(self.node))
        running = asyncio.create_task(self.node.run(stop))
        try:
            await self.node.ready.wait()
            yield self
        finally:
            stop.set()
            await running
            folder.close()

    async def until(self, condition: Callable[[], object], what: str) -> None:
        try:
            async with asyncio.timeout(WITHIN_S):
                while not condition():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"waited for this: {what}") from None

    async def send(self, count: int, due: int, size: int = 100) -> list[str]:
        drafts = [
            Draft(TOPIC, os.urandom(size), due + n, name=of_client(f"{due}-{n}"), fingerprint=b"f" * 16)
            for n in range(count)
        ]
        return [answer.id for answer in await self.gateway.send(drafts) if isinstance(answer, Receipt)]

    async def delivered(self, upto: int) -> None:
        """Let all be delivered that is due by this time."""
        self.now = upto
        await self.until(
            lambda: not any(start <= upto for start in self.shard.replica.wheel.all_totals()), "all deliveries"
        )

    async def forgotten(self) -> None:
        """Until the ledger says that all that was due by a `DAY` ago is."""
        horizon = window_of(self.now - DAY)
        await self.until(lambda: self.shard.replica.entry.horizon == horizon, "the ledger to forget")

    async def is_known(self, id: str) -> bool:
        return await self.gateway.state(id) is not None

    async def kept_from(self) -> int:
        """The first offset of the topic that can be read."""
        info = await self.node.bus.topic(TOPIC)
        return -1 if info is None else info.start_offsets[0]

    def held(self) -> dict[bytes, int]:
        return {kind: sum(1 for _ in self.shard.store.each(kind)) for kind in (*KINDS, DELAY_FILE, DROPPED, LOADING)}

    async def verify(self) -> None:
        """The folder at rest, as `duemq verify` does."""
        folder, bus = Folder.open(self.folder), await EmbeddedBus.open(self.folder / "bus", clock=lambda: self.now)
        try:
            checks = await verify(folder, bus, Memory(8 << 20, 8 << 20), lambda what, rows: None)
        finally:
            await bus.close()
            folder.close()
        assert not [check for check in checks if not check.good]

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.get_sample_value(name, labels)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "data")


def options(retention_ms: int = DAY) -> NodeOptions:
    """Cleans because of the disk alone: the one cleaning of the day is half a day away."""
    delay_files = TieringPolicy(rows=500, windows=1, quiet_ms=0)
    cycle_limits = CycleLimits(retention_ms=retention_ms, min_retention_ms=600_000)
    return NodeOptions(cycle_limits, purge_at=((datetime.now(UTC).hour + 12) % 24, 0), delay_files=delay_files)


async def test_what_was_delivered_and_forgotten_leaves_nothing_on_the_disk(site: Site) -> None:
    async with site.running(options()):
        shards = site.folder / "shards"
        near = await site.send(500, BASE + 1_000, 4_000)
        delay_files = await site.send(500, BASE + 5 * WINDOW_MS, 4_000)
        sealed = site.shard.store.path / FOLDER / str(BASE + 5 * WINDOW_MS)
        await site.until(lambda: list(sealed.glob("*.parquet")), "a delay file")
        ends = await site.gateway.change(CANCEL, [*near[:50], *delay_files[:50]])
        moves = await site.gateway.change(MOVE, [*near[50:60], *delay_files[50:60]], BASE + 6 * WINDOW_MS)
        assert {outcome.answer for outcome in (*ends, *moves)} == {Answer.OK}
        await site.delivered(BASE + 2_000)
        await site.delivered(BASE + 7 * WINDOW_MS)
        await site.until(lambda: not sealed.exists(), "the delay files to be removed")
        await site.node.maintenance.flush()
        full = disk_bytes(shards)
        assert full > 3_000_000

        site.now += DAY + 2 * WINDOW_MS
        await site.forgotten()
        assert site.held()[ROW] > 0, "it is not time to clean"
        await site.node.clean()
        await site.node.maintenance.flush()
        kinds = site.held()
        assert (kinds.pop(CURSOR), kinds.pop(APPLIED)) == (1, 1)
        assert not any(kinds.values()), kinds
        # RocksDB removes files in the background.
        await site.until(lambda: disk_bytes(shards) < full - 3_000_000, "the space")
        assert not list((site.shard.store.path / FOLDER).iterdir())
        assert not await site.is_known(near[0])
        assert site.value("duemq_purges_total", trigger="schedule") == 1
        again = await site.send(500, BASE + 1_000, 10)
        assert len(again) == 500 and not set(again) & set(near), "names are free"
    await site.verify()


async def test_a_disk_that_fills_is_cleaned_at_once(site: Site) -> None:
    async with site.running(replace(options(), retention_s=3_600, flush_interval_s=0.1)):
        await site.send(10, BASE + 1_000, 300_000)
        await site.delivered(BASE + 2_000)
        site.now += DAY + WINDOW_MS
        await site.forgotten()
        assert site.node.bus.disk_bytes() > 3_000_000
        site.percent = 74.0
        await site.until(lambda: site.value("duemq_disk_used_ratio") == 0.74, "a look at the disk")
        assert (site.value("duemq_disk_watermark"), site.held()[ROW], await site.kept_from()) == (0, 10, 0)
        site.percent = 76.0
        await site.until(lambda: site.held()[ROW] == 0, "a cleaning")
        await site.until(lambda: site.value("duemq_purges_total", trigger="disk") == 1, "its count")
        assert await site.kept_from() == 10, "the topic had its time, too"
        await site.until(lambda: site.node.bus.disk_bytes() < 1_000_000, "the space of its records")
        assert site.value("duemq_disk_watermark") == 1


async def test_a_fuller_disk_costs_history(site: Site) -> None:
    async with site.running(options()):
        (old,) = await site.send(1, BASE + 1_000)
        await site.delivered(BASE + 2_000)
        site.now = BASE + 2 * HOUR
        site.percent = 80.0
        await site.until(lambda: site.value("duemq_purges_total", trigger="disk"), "a cleaning")
        assert await site.is_known(old)
        (young,) = await site.send(1, site.now)
        await site.delivered(site.now + 1)
        assert await site.is_known(old)
        site.percent = 86.0
        await site.until(lambda: site.shard.replica.entry.horizon == BASE + 2 * HOUR - WINDOW_MS, "a short history")
        await site.until(lambda: site.held()[ROW] == 1, "a cleaning")
        assert not await site.is_known(old) and await site.is_known(young)
        assert site.value("duemq_disk_watermark") == 2


async def test_a_full_disk_refuses_new_messages_alone_and_takes_them_again_by_itself(site: Site) -> None:
    async with site.running(options()):
        soon, cancelled, moved = await site.send(3, BASE + 60_000)
        site.percent = 90.0
        await site.until(lambda: site.value("duemq_disk_watermark") == 3, "the mark")
        for due in (None, site.now + 1_000):
            with pytest.raises(DiskFull) as refused:
                await site.gateway.send([Draft(TOPIC, b"more", due)])
        for part in ("90.0 %", "storage.refuse_percent", str(site.folder)):
            assert part in refused.value.detail
        assert refused.value.retry_after_s > 0
        assert [outcome.answer for outcome in await site.gateway.change(CANCEL, [cancelled])] == [Answer.OK]
        assert [outcome.answer for outcome in await site.gateway.change(MOVE, [moved], BASE + HOUR)] == [Answer.OK]
        await site.delivered(BASE + 61_000)
        state = await site.gateway.state(soon)
        assert state is not None and state.status == "delivered"
        assert site.gateway.why_not_ready() is None

        site.percent = 89.0
        await site.until(lambda: site.value("duemq_disk_used_ratio") == 0.89, "a look at the disk")
        with pytest.raises(DiskFull):
            await site.send(1, site.now)
        site.percent = 88.9
        await site.until(lambda: site.value("duemq_disk_watermark") == 2, "the mark to be left")
        assert await site.send(1, site.now + 7)


async def test_a_shard_that_gets_nothing_more_makes_room_by_itself(site: Site) -> None:
    """Else a disk that is full of what was delivered last would refuse for ever what would move the cursor on."""
    async with site.running(options()):
        await site.send(100, BASE + 1_000)
        await site.delivered(BASE + 2_000)
        site.percent = 95.0
        await site.until(lambda: site.value("duemq_disk_watermark") == 3, "the mark")
        site.now = BASE + WINDOW_MS + 601_000
        await site.until(lambda: site.held()[ROW] == 0, "the last window to be dropped")


async def test_the_schedule_cleans_an_empty_disk_too(site: Site) -> None:
    async with site.running(replace(options(HOUR), purge_at=None, purge_interval_s=0.1)):
        await site.send(10, BASE + 1_000)
        await site.delivered(BASE + 2_000)
        site.now += 2 * HOUR
        await site.until(lambda: site.held()[ROW] == 0, "a cleaning")
        assert site.value("duemq_purges_total", trigger="disk") == 0
        # What was due before all that is forgotten is kept as long as anything else, and dropped then.
        await site.send(10, BASE + 5_000)
        await site.until(lambda: site.shard.replica.entry.outcomes.delivered == 20, "late ones")
        await site.node.clean()
        assert site.held()[ROW] == 10
        site.now += 2 * HOUR
        await site.until(lambda: site.held()[ROW] == 0, "a cleaning")


@pytest.mark.parametrize("step", ["names", "moves", "range", "index", "dropped", "compacted"])
async def test_a_cleaning_that_was_cut_short_is_finished_by_the_next_start(site: Site, step: str) -> None:
    def die(at: str) -> None:
        if at == step:
            raise Killed(step)

    async with site.running(options()):
        ids = await site.send(40, BASE + 1_000)
        later = await site.send(5, BASE + 3 * DAY)
        await site.gateway.change(MOVE, ids[:5], BASE + 3 * DAY)
        await site.gateway.change(CANCEL, ids[5:10])
        await site.delivered(BASE + 2_000)
        site.now += DAY + WINDOW_MS
        await site.forgotten()
        with pytest.raises(Killed):
            await site.shard.clean(die)
        assert site.shard.to_purge
    await site.verify()
    async with site.running(options()):
        for id in ids[5:10]:
            assert [outcome.answer for outcome in await site.gateway.change(CANCEL, [id])] == [Answer.UNKNOWN]
        await site.node.clean()
        assert not site.shard.to_purge
        for id in ids:
            assert await site.is_known(id) == (id in ids[:5])
        assert site.shard.replica.recount() == site.shard.replica.entry.pending == 10
        assert site.held()[ROW] == 10
        await site.delivered(BASE + 3 * DAY + 100)
        for id in (*ids[:5], *later):
            state = await site.gateway.state(id)
            assert state is not None and (state.status, state.delivered_at) == ("delivered", site.now)
    await site.verify()


class WithAnother(SingleElection):
    """Another node is there, that follows the shards this one is master of."""

    other = Member("other", "", holds=frozenset({0}), health=NodeHealth(NodeState.READY))

    def members(self) -> list[Member]:
        return [*super().members(), self.other]


async def test_the_fullest_disk_of_all_replicas_says_how_long_history_is(site: Site) -> None:
    election = WithAnother(1)
    async with site.running(options(), election):
        await site.send(10, BASE + 1_000)
        await site.delivered(BASE + 2_000)
        site.now = BASE + 4 * HOUR
        (own, _) = election.members()
        assert own.health.watermark == 0
        election.other = Member("other", "", holds=frozenset({1}), health=NodeHealth(NodeState.READY, watermark=2))
        site.percent = 80.0
        await site.until(lambda: election.members()[0].health.watermark == 1, "this node to tell of its disk")
        assert not site.node.short_of_space(0) and site.node.short_of_space(1)
        assert site.shard.replica.entry.horizon < BASE
        election.other = Member("other", "", holds=frozenset({0}), health=NodeHealth(NodeState.READY, watermark=2))
        await site.until(lambda: site.shard.replica.entry.horizon > BASE, "a short history")
