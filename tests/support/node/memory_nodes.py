"""Delay nodes on a log in memory, with an election in the hand of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from duemq.bus.base import Bus, wall_clock
from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.delay.node import Node, NodeOptions, Peers
from duemq.delay.node_backend import NodeBackend
from duemq.delay.node_states import NodePhase
from duemq.delay.shard.shard import Shard
from duemq.election.base import Member, NodeHealth
from duemq.election.changes import ChangeSignal
from duemq.model.disk_use import DiskUse
from duemq.model.messages.record import unpack_record
from duemq.model.topics.cluster_identity import ClusterIdentity
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.storage.data_folder import Folder, disk_use
from tests.support.patience import WITHIN_S

IDENTITY = ClusterIdentity("cluster", 1, b"s" * 32)


class ManualClock:
    """Stands still between two steps of the test. Call it for the time, epoch ms."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


class ManualElection:
    """Gives shards to its node as the test says."""

    def __init__(self) -> None:
        self.health: NodeHealth | None = None
        self.others: list[Member] = []
        self.away = False  # the coordinator is out of reach
        self._owned: frozenset[int] = frozenset()
        self._changes = ChangeSignal()
        self._joined = False

    def give(self, *shards: int) -> None:
        self._owned = frozenset(shards)
        self._changes.tell()

    async def join(self) -> None:
        self._joined = True

    def owned_shards(self) -> frozenset[int]:
        return self._owned if self._joined else frozenset()

    def is_paused(self) -> bool:
        return self.away

    async def wait_for_change(self, timeout_s: float | None = None) -> bool:
        return await self._changes.wait(timeout_s)

    async def release(self, shard: int) -> None:
        await asyncio.sleep(0)

    async def report(self, health: NodeHealth) -> None:
        self.health = health

    def members(self) -> Sequence[Member]:
        return self.others

    def masters(self) -> Mapping[int, str]:
        return {}

    def draining(self) -> bool:
        return False

    async def leave(self) -> None:
        self._joined = False


class MemoryNode:
    """A node, of one shard if nothing else is said, that runs from `async with` on."""

    def __init__(
        self,
        log: MemoryLog,
        path: Path,
        *,
        bus: Callable[[MemoryLog], Bus] = MemoryBus,
        clock: Callable[[], int] = wall_clock,
        peers: Peers | None = None,
        alone: bool = False,
        shards: int = 1,
        measure: Callable[[Path], DiskUse] = disk_use,
        **options: Any,
    ) -> None:
        """`options`: of the node, see `NodeOptions`. `shards`: of its cluster. `measure`: see `Node`."""
        self._identity, self._measure = replace(IDENTITY, shards=shards), measure
        self.election, self._path, self._bus, self._log = ManualElection(), path, bus, log
        self._options, self._clock, self._peers = NodeOptions(alone=alone, trims=False, **options), clock, peers
        self.metrics = CollectorRegistry()
        self.node: Node
        self.running: asyncio.Task[None]

    @property
    def shard(self) -> Shard:
        return self.node.shards[0]

    @property
    def gateway(self) -> CommandGateway:
        return CommandGateway(NodeBackend(self.node))

    async def __aenter__(self) -> MemoryNode:
        self._folder = Folder.open(self._path, identity=self._identity)

        async def open_bus() -> Bus:
            return self._bus(self._log)

        self.node = Node(
            self._folder, open_bus, self.election, self._options, self.metrics, self._clock, self._peers,
            measure=self._measure,
        )  # fmt: skip
        self._stop = asyncio.Event()
        self.running = asyncio.create_task(self.node.run(self._stop))
        await asyncio.wait([self.running], timeout=0.01)
        while self.node.phase is NodePhase.OPENING:  # its shards, in threads
            await asyncio.wait([self.running], timeout=0.01)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        try:
            await self.running
        finally:
            self._folder.close()

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition of this node. Fails at once where the node has ended."""
        try:
            async with asyncio.timeout(WITHIN_S):
                while not condition():
                    if self.running.done():
                        self.running.result()
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"waited for this: {what}; the node says: {self.node.why_not_ready}") from None

    async def ready(self) -> None:
        await self.until(lambda: self.node.why_not_ready is None, "the node to be ready")

    async def lead(self) -> None:
        self.election.give(0)
        await self.until(lambda: self.shard.leading, "the node to be master")


def values(log: MemoryLog, topic: str) -> list[str]:
    """The payloads in a topic."""
    return [unpack_record(one.frame).payload.decode() for part in log.topics.get(topic, []) for one in part.frames]


async def empty(log: MemoryLog, topic: str) -> None:
    """Drop all that a topic holds, as retention does."""
    bus = MemoryBus(log)
    for number, partition in enumerate(log.topics[topic]):
        await bus.trim(topic, number, partition.end)
