"""Random histories whose history is forgotten, by replicas that clean when they like and are killed while they do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from duemq.delay.replica.retention import purge_before
from duemq.model.failpoint import no_failpoint
from duemq.model.messages.key import first_key_at
from duemq.model.timing import WINDOW_MS
from duemq.storage.keyspace import APPLIED, CURSOR, ROW
from duemq.storage.rocksdb import Memory
from tests.support.shard.shard_world import KINDS, Killed, SimNode
from tests.support.shard.tiering_schedule import TieringSchedule

_STEPS = ("ends", "names", "moves", "range", "runs", "index", "dropped", "compacted")


class RetentionSchedule(TieringSchedule):
    """As `FarSchedule`. History is kept for a window or two, or, where disks are short of space, for ten minutes."""

    def __init__(self, seed: int, folder: Path, memory: Memory) -> None:
        super().__init__(seed, folder, memory)
        world, rng = self.world, self.rng
        world.cycle_limits = replace(
            world.cycle_limits, retention_ms=rng.choice((1, 2)) * WINDOW_MS, min_retention_ms=600_000
        )

    def actions(self) -> dict[Callable[[], Any], int]:
        return super().actions() | {
            self.forget: 15, self.die_purging: 6, self.fill_disk: 3, self.wait_long: 10,
        }  # fmt: skip

    async def fill_disk(self) -> None:
        self.world.short = not self.world.short

    async def forget(self) -> None:
        node = self.rng.choice(self.world.nodes)
        await self._forget(node)
        self.world.check(self.node)

    async def die_purging(self) -> None:
        """At a step of it, or of the one after; what was done so far may be on disk or not."""
        node, step, wait = self.rng.choice(self.world.nodes), self.rng.choice(_STEPS), self.rng.randint(0, 1)

        def fault(name: str) -> None:
            nonlocal wait
            if name == step:
                if wait == 0:
                    raise Killed(name)
                wait -= 1

        try:
            await self._forget(node, fault)
        except Killed:
            if self.rng.random() < 0.5:
                node.store.flush()
            node.kill()
            if node is self.node:
                await self.fail_over()

    async def _forget(self, node: SimNode, fault: Callable[[str], None] = no_failpoint) -> None:
        """As `Shard.clean` does, with cycles in between."""
        store, horizon = node.store, node.replica.entry.horizon
        for _ in purge_before(store, horizon, node.replica.entry.end_horizon, fault):
            if self.rng.random() < 0.3:
                await self.produce()
                await self.tick()
        fault("dropped")
        if self.rng.random() < 0.5:
            store.compact(ROW, ROW + first_key_at(horizon))
        fault("compacted")

    def compare(self) -> None:
        """They agree once each has dropped what is forgotten."""
        for node in self.world.nodes:
            entry = node.replica.entry
            for _ in purge_before(node.store, entry.horizon, entry.end_horizon):
                pass
        super().compare()

    async def drain(self) -> None:
        await super().drain()
        # A shard that has nothing to do for as long as history is kept forgets all of it, and then rests.
        world = self.world
        world.short = False
        for _ in range(3):
            world.now += 4 * WINDOW_MS
            while await world.tick(self.node) == 0:
                pass
        number = world.oracle.number
        world.now += 4 * WINDOW_MS
        await world.tick(self.node)
        assert world.oracle.number == number, "there is nothing left to forget"
        for node in world.nodes:
            await node.follow()
        self.compare()
        left = {kind: len(rows) for kind, rows in self.node.contents().items()}
        assert left == dict.fromkeys(KINDS, 0) | {CURSOR: 1, APPLIED: 1}
        node = self.node
        node.store.compact()
        node.store.flush()
        node.kill()
        await node.promote()
        world.check(node)
