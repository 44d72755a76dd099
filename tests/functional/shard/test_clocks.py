"""Clocks that are wrong, in each kind of process: on the log in memory, whose time is the true one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from duemq.bus.base import wall_clock
from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.backend import NoCluster
from duemq.cluster.clocks.clock import GuardedClock
from duemq.cluster.clocks.clock_watch import ClockWatch
from duemq.cluster.topics.internal_topics import BUFFER
from duemq.cluster.topics.topic_states import TopicStates
from duemq.delay.node import Node, NodeOptions
from duemq.delay.node_backend import NodeBackend
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.election.single import SingleElection
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.message import Draft, schedule_frame
from duemq.model.messages.record import unpack_record
from duemq.model.timing import WINDOW_MS
from duemq.model.topics.cluster_identity import ClusterIdentity
from duemq.proxy.app import create_app
from duemq.proxy.gateway.cluster_backend import ProxyBackend
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.proxy.gateway.ledger_follower import LedgerFollower
from duemq.proxy.gateway.remote_reader import RemoteReader
from duemq.proxy.request.ingress import Ingress, MessageLimits
from duemq.storage.data_folder import Folder
from duemq.web.settings import HttpSettings
from tests.support.patience import WITHIN_S

pytestmark = pytest.mark.anyio

HOUR = 3_600_000


def steady() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass
class Machine:
    """`wrong`: how far its wall clock is ahead, ms. `slept`: for how long its steady clock stood still."""

    wrong: int = 0
    slept: int = 0
    clock: GuardedClock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = GuardedClock(lambda: wall_clock() + self.wrong, lambda: steady() - self.slept)


class ComparedBus(MemoryBus):
    """A log on other machines, whose time is the true one, `true()`."""

    def __init__(self, log: MemoryLog, clock: Callable[[], int], true: Callable[[], int] = wall_clock) -> None:
        super().__init__(log)
        self.clock, self.true = clock, true
        self.failure: Exception | None = None

    async def clock_offset_ms(self) -> float:
        if self.failure is not None:
            raise self.failure
        return float(self.true() - self.clock())


class Standby(SingleElection):
    """A node that is never given anything."""

    async def join(self) -> None:
        pass


@asynccontextmanager
async def running(
    path: Path, log: MemoryLog, clock: Callable[[], int], election: SingleElection | None = None, *,
    alone: bool = True, delay_files: TieringPolicy | None = None, compared: bool = True,
) -> AsyncIterator[Node]:  # fmt: skip
    folder = Folder.open(path, 1, ClusterIdentity("c", 1, b"s" * 32))

    async def open_bus() -> MemoryBus:
        return ComparedBus(log, clock) if compared else MemoryBus(log)

    options = NodeOptions(alone=alone, trims=False, delay_files=delay_files or TieringPolicy())
    node = Node(folder, open_bus, election or SingleElection(1), options, CollectorRegistry(), clock)
    stop = asyncio.Event()
    task = asyncio.create_task(node.run(stop))
    try:
        await asyncio.wait_for(node.ready.wait(), WITHIN_S)
        yield node
    finally:
        stop.set()
        await task
        folder.close()


async def until(true: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert true(), what


def delivered(log: MemoryLog) -> list[str]:
    return [unpack_record(r.frame).payload.decode() for p in log.topics.get("orders", []) for r in p.frames]


async def produce(log: MemoryLog, text: str, due: int) -> None:
    """As a proxy whose clock is right."""
    await MemoryBus(log).append({(BUFFER, 0): [schedule_frame(Draft("orders", text.encode(), due), due)]})


@pytest.mark.parametrize("alone", [True, False])
async def test_a_node_follows_the_true_time_after_it_was_suspended(tmp_path: Path, alone: bool) -> None:
    machine, log = Machine(), MemoryLog()
    async with running(tmp_path / "n", log, machine.clock, alone=alone) as node:
        machine.slept = HOUR
        assert machine.clock() < wall_clock() - HOUR + 1_000
        await until(lambda: abs(machine.clock() - wall_clock()) < 100, "it follows")
        assert node.why_not_ready is None


@pytest.mark.parametrize("alone", [True, False])
async def test_a_node_that_is_ahead_delivers_nothing_until_it_is_set_right(tmp_path: Path, alone: bool) -> None:
    machine, log = Machine(wrong=10_000), MemoryLog()
    async with running(tmp_path / "n", log, machine.clock, alone=alone) as node:
        assert "node.max_clock_offset_ms" in str(node.why_not_ready)
        due = wall_clock() + 3_000
        await produce(log, "soon", due)
        while wall_clock() < due:
            assert not delivered(log)
            await asyncio.sleep(0.05)
        assert not delivered(log) and not node.shards[0].leading, "it cannot know that it is right"
        machine.wrong = 0
        await until(lambda: delivered(log) == ["soon"], "it is delivered")
        assert node.why_not_ready is None and abs(machine.clock() - wall_clock()) < 100


async def test_a_master_whose_clock_turns_out_wrong_gives_its_shards_up(tmp_path: Path) -> None:
    """The brokers' time was stepped, or this machine's steady clock ran away: nobody can say which is right."""
    machine, log = Machine(), MemoryLog()
    ahead = 0
    async with running(tmp_path / "n", log, machine.clock) as node:
        await until(lambda: node.shards[0].leading, "it leads")
        bus = node.bus
        assert isinstance(bus, ComparedBus)
        bus.true = lambda: wall_clock() - ahead
        ahead = 2_000
        await until(lambda: not node.shards[0].leading, "it does not lead")
        await produce(log, "later", wall_clock())
        backend = NodeBackend(node)
        assert backend.why_closed() is None, "messages with absolute times are accepted"
        assert node.why_not_ready == backend.why_clock_out()
        assert not delivered(log)
        ahead = 0
        await until(lambda: delivered(log) == ["later"], "it leads again")


async def test_a_node_within_the_bound_does_not_deliver_early_by_what_it_knows(tmp_path: Path) -> None:
    machine, log = Machine(wrong=400), MemoryLog()
    early: list[int] = []
    async with running(tmp_path / "n", log, machine.clock) as node:
        assert node.why_not_ready is None
        for _ in range(3):
            count, due = len(delivered(log)), wall_clock() + 500
            await produce(log, "x", due)
            await until(lambda count=count: len(delivered(log)) > count, "it is delivered")  # type: ignore[misc]
            early.append(due - wall_clock())
    assert max(early) <= 10


async def test_a_failing_comparison_neither_ends_nor_reopens_a_node(tmp_path: Path) -> None:
    machine, log = Machine(), MemoryLog()
    async with running(tmp_path / "n", log, machine.clock) as node:
        bus = node.bus
        assert isinstance(bus, ComparedBus)
        bus.failure = RuntimeError("topic duemq.clock is gone")
        await until(lambda: node.watch.failures >= 2, "it tries again")
        assert node.bus is bus and node.why_not_ready is None
        await produce(log, "on", wall_clock())
        await until(lambda: delivered(log) == ["on"], "it goes on")


async def test_a_standby_whose_clock_is_hours_behind_gets_past_sealed_windows(tmp_path: Path) -> None:
    """It follows by the ledger's time: only a master's clock decides what is due."""
    start = (wall_clock() // WINDOW_MS + 6) * WINDOW_MS
    now, log = [wall_clock()], MemoryLog()
    policy = TieringPolicy(rows=5, quiet_ms=0)
    behind = now[0] - 5 * HOUR
    async with (
        running(tmp_path / "a", log, lambda: now[0], alone=False, delay_files=policy, compared=False) as master,
        running(
            tmp_path / "b", log, lambda: behind, Standby(1), alone=False, delay_files=policy, compared=False
        ) as standby,
    ):
        for number in range(20):
            await produce(log, str(number), start + number)
        held = master.shards[0], standby.shards[0]
        await until(
            lambda: all(shard.store.delay_files.first == start for shard in held), "both have sealed the window"
        )
        now[0] = start + 60_000
        await until(lambda: len(delivered(log)) == 20, "the master delivers")
        await until(lambda: held[1].replica.entry.number == held[0].replica.entry.number, "the standby follows")
        assert held[1].replica.entry.pending == 0


class Proxy:
    """A proxy in front of a log, by HTTP. `machine`: it runs on this one."""

    def __init__(self, log: MemoryLog, machine: Machine, node: Node) -> None:
        self.bus, self.watch = ComparedBus(log, machine.clock), ClockWatch(machine.clock)
        self.registry = CollectorRegistry()
        self.follower = LedgerFollower(self.bus, 1)
        self.http = httpx.AsyncClient()
        self.backend = ProxyBackend(
            "c", self.bus, IdCodec(b"s" * 32), TopicStates(self.bus, 1), self.follower,
            RemoteReader(node.election, self.http), node.election, NoCluster(), self.watch, self.registry,
        )  # fmt: skip
        app = create_app(
            CommandGateway(self.backend), Ingress(MessageLimits(), self.backend.why_clock_out), HttpSettings(),
            self.registry, self.backend.clock, asyncio.Event(),
        )  # fmt: skip
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://proxy")

    async def post(self, **fields: object) -> httpx.Response:
        return await self.client.post("/v1/messages", json={"topic": "orders", "payload": "x", **fields})


@asynccontextmanager
async def proxied(path: Path, machine: Machine) -> AsyncIterator[Proxy]:
    log = MemoryLog()
    async with running(path / "n", log, wall_clock) as node:
        proxy = Proxy(log, machine, node)
        await proxy.watch.measure(proxy.bus)
        tasks = [asyncio.create_task(proxy.follower.run()), asyncio.create_task(proxy.watch.run(proxy.bus))]
        try:
            await proxy.follower.ready.wait()
            yield proxy
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await proxy.client.aclose()
            await proxy.http.aclose()


@pytest.mark.parametrize("wrong", [HOUR, -HOUR])
async def test_a_proxy_with_a_wrong_clock_refuses_relative_times(tmp_path: Path, wrong: int) -> None:
    machine = Machine(wrong)
    async with proxied(tmp_path, machine) as proxy:
        for fields in ({"deliver_after": "30m"}, {"delay_level": 3}, {}):
            refused = await proxy.post(**fields)
            assert (refused.status_code, refused.json()["code"]) == (503, "clock_out_of_bounds")
            assert "node.max_clock_offset_ms" in refused.json()["detail"] and "Retry-After" in refused.headers
        batch = await proxy.client.post(
            "/v1/messages:batch", json={"messages": [{"topic": "orders", "payload": "x", "deliver_after": 5}]}
        )
        assert batch.json()["code"] == "clock_out_of_bounds"
        ready = await proxy.client.get("/readyz")
        assert (ready.status_code, ready.json()["reason"]) == (503, "clock_wrong")
        assert proxy.registry.get_sample_value("duemq_clock_offset_seconds") == pytest.approx(-wrong / 1000, abs=1)

        due = wall_clock() + 20 * 60_000
        taken = await proxy.post(deliver_at=due, expires_at=due + 60_000)
        assert taken.status_code == 201 and taken.json()["deliver_at_ms"] == due
        url = f"/v1/messages/{taken.json()['id']}"
        moved = await proxy.client.patch(url, json={"deliver_after": "10m"})
        assert moved.json()["code"] == "clock_out_of_bounds"

        machine.wrong = 0
        await until(lambda: proxy.backend.why_not_ready() is None, "the clock is right again")
        taken = await proxy.post(deliver_after="30m")
        assert abs(taken.json()["deliver_at_ms"] - wall_clock() - 30 * 60_000) < 2_000


async def test_a_proxy_follows_the_true_time_after_it_was_suspended(tmp_path: Path) -> None:
    machine = Machine()
    async with proxied(tmp_path, machine) as proxy:
        machine.slept = HOUR
        await until(lambda: abs(machine.clock() - wall_clock()) < 100, "it follows")
        taken = await proxy.post(deliver_after="30m")
        assert abs(taken.json()["deliver_at_ms"] - wall_clock() - 30 * 60_000) < 2_000


async def test_a_proxy_that_is_behind_by_less_than_the_bound_makes_nothing_early(tmp_path: Path) -> None:
    machine = Machine(wrong=-400)
    async with proxied(tmp_path, machine) as proxy:
        sent = wall_clock()
        taken = await proxy.post(deliver_after="10s")
        assert taken.json()["deliver_at_ms"] >= sent + 10_000 - 2


async def test_a_message_without_delay_shows_no_time_ahead_of_its_record(tmp_path: Path) -> None:
    """Its record has the time of the proxy's clock: chaos on a busy machine saw records a ms before their due time."""
    machine = Machine(wrong=-400)
    async with proxied(tmp_path, machine) as proxy:
        taken = await proxy.post()
        assert taken.json()["deliver_at_ms"] <= machine.clock()
    machine = Machine(wrong=400)
    async with proxied(tmp_path / "ahead", machine) as proxy:
        taken = await proxy.post()
        assert taken.json()["deliver_at_ms"] <= wall_clock() + 2, "or, where the broker stamps it, that of the broker"
