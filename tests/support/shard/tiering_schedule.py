"""Random histories of one shard whose far windows are sealed into delay files and loaded, with kills at every step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duemq.delay.indexing import topic_counter
from duemq.delay.indexing.topic_counter import TopicCounter
from duemq.delay.replica.prefetch import PrefetchedView
from duemq.delay.threads import in_thread
from duemq.delay.tiering import tiering
from duemq.delay.tiering.completion import CompletionPass
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.model.messages.key import due_of, first_key_at
from duemq.model.messages.message import CANCEL, Change
from duemq.model.timing import WINDOW_MS, window_of
from duemq.storage.rocksdb import Memory
from duemq.storage.shard.store import ShardStore
from duemq.storage.shard.topic_counts import TopicCounts
from tests.support.shard.shard_schedule import Schedule
from tests.support.shard.shard_world import SHARD, Killed, SimNode


class TieringSchedule(Schedule):
    """As `Schedule`, with messages up to six windows ahead."""

    def __init__(self, seed: int, folder: Path, memory: Memory) -> None:
        super().__init__(seed, folder, memory)
        self.world.meanwhile = self.meanwhile
        self.world.delay_files = TieringPolicy(
            rows=self.rng.randint(1, 4), windows=1, ahead_ms=600_000, quiet_ms=0,
            rewrite_share=self.rng.choice((0.2, 0.5, 1.0)), rewrite_rows=1,
            join_files=self.rng.choice((2, 3, 16)), join_ms=0, merge_files=self.rng.choice((2, 512)),
        )  # fmt: skip

    async def run(self, steps: int = 70) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tiering, "in_thread", self.in_thread)
            read = PrefetchedView._read_rows_of_ended

            async def reading(view: PrefetchedView, wanted: Callable[[], list[bytes]]) -> None:
                """The shard continues while a thread reads the records of cancelled messages."""
                nodes = [node for node in self.world.nodes if node.store is view._store]
                if self.world.meanwhile is not None and self.rng.random() < 0.1:
                    for node in nodes:
                        await self.meanwhile(node)
                await read(view, wanted)

            async def prefetching(store: ShardStore, after: bytes, through: bytes) -> None:
                await self.in_thread(store.has_row, after)

            patch.setattr(PrefetchedView, "_read_rows_of_ended", reading)
            patch.setattr(topic_counter, "prefetch_part", prefetching)
            patch.setattr(topic_counter, "_PART", 3)
            await super().run(steps)

    async def in_thread(self, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """The shard goes on while a thread works on its store: before that has happened, or after it."""
        store = getattr(work, "__self__", arguments[0] if arguments else None)
        nodes = [node for node in self.world.nodes if node.store is store]
        if self.world.meanwhile is not None and self.rng.random() < 0.2:
            for node in nodes:
                await self.meanwhile(node)
        done = await in_thread(work, *arguments, **options)
        if self.world.meanwhile is not None and self.rng.random() < 0.2:
            for node in nodes:
                await self.meanwhile(node)
        return done

    def actions(self) -> dict[Callable[[], Any], int]:
        return super().actions() | {
            self.seal_or_load: 20, self.die_of_it: 6, self.wait_long: 4, self.cancel_sealed: 6, self.complete: 4,
            self.lose_counts: 6, self.count: 12,
        }  # fmt: skip

    def _due(self) -> int:
        if self.rng.random() < 0.5:
            # Few distinct times, so that windows fill and several messages share a millisecond.
            return (self.world.now // WINDOW_MS + self.rng.randint(2, 6)) * WINDOW_MS + self.rng.randint(0, 3)
        return super()._due()

    async def wait_long(self) -> None:
        self.world.now += self.rng.choice((600_000, WINDOW_MS, 3 * WINDOW_MS))

    async def tick(self) -> None:
        # What is due has to be loaded, or the master would rest for ever; now and then it does rest.
        if self.rng.random() < 0.8:
            await self.load_all()
        await super().tick()

    async def load_all(self) -> None:
        while self.node.replica.reach(self.world.now) < self.world.now:
            await self.node.delay_files.step()

    async def seal_or_load(self) -> None:
        node = self.rng.choice(self.world.nodes)
        for _ in range(self.rng.randint(1, 3)):
            await node.delay_files.step()
        if node is self.node:
            self.world.check(node)

    async def complete(self) -> None:
        """Read the records of some messages that were cancelled in files."""
        node = self.rng.choice(self.world.nodes)
        part = CompletionPass(node.store, list(node.store.delay_files.rowless_counts()))
        for _ in range(self.rng.randint(1, 3)):
            await part.step()
        if node is self.node:
            self.world.check(node)

    async def lose_counts(self) -> None:
        """As after an older version, which leaves counts of before as they are."""
        node = self.rng.choice(self.world.nodes)
        store, node.counts_lost = node.store, True
        store.topic_counts = TopicCounts(store, -9, store.position.entry.pending, store.delay_files.unread)

    async def count(self) -> None:
        """Count some of what an older version left."""
        node = self.rng.choice(self.world.nodes)
        for _ in range(self.rng.randint(1, 2)):
            await TopicCounter(SHARD, node.replica).step()
        if node is self.node:
            self.world.check(node)

    async def cancel_sealed(self) -> None:
        """Most of a window, so that its files are rewritten, or dropped."""
        windows = self.node.store.delay_files.windows()
        if windows:
            window, share = self.rng.choice(windows), self.rng.choice((0.5, 0.8, 1.0))
            keys = [key for key in self.world.oracle.pending if window_of(due_of(key)) == window]
            firsts = [first for first, message in self.world.oracle.messages.items() if message.key in keys]
            await self.world.produce([Change(CANCEL, first, 0) for first in firsts if self.rng.random() < share])

    async def meanwhile(self, node: SimNode) -> None:
        """The shard goes on while a process works on one of its windows."""
        if self.rng.random() < 0.7:
            await self.produce()
        if self.node.master is not None:
            await self.world.tick(self.node)
        first, cursor = node.store.delay_files.first, self.world.oracle.cursor
        # One that waits for a window is following already.
        if node is not self.node and not node.following and (first is None or cursor < first_key_at(first)):
            await node.follow()

    async def die_of_it(self) -> None:
        node = self.rng.choice(self.world.nodes)
        if node.store.delay_files.first is not None and self.rng.random() < 0.7:
            self.world.now = max(self.world.now, node.store.delay_files.first - 600_000)
        node.tiering_fault = self.rng.randint(1, 9)
        try:
            for _ in range(4):
                await node.delay_files.step()
        except Killed:
            node.kill()
            if node is self.node:
                await self.fail_over()
        node.tiering_fault = None

    async def drain(self) -> None:
        self.world.meanwhile = None
        for node in self.world.nodes:
            self.world.now = max(
                self.world.now, *(window + WINDOW_MS for window in [0, *node.store.delay_files.windows()])
            )
        await self.load_all()
        await super().drain()
