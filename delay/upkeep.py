"""The periodic work of a node: flushing, forgetting, and looking at its disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from duemq.bus.base import Bus
from duemq.delay.clean import forget_before
from duemq.delay.shard import Shard
from duemq.delay.topics import BUFFER, LEDGER
from duemq.model.key import first_key_at
from duemq.storage.folder import Folder, disk_bytes
from duemq.storage.rows import ROW

log = logging.getLogger(__name__)


class Upkeep:
    """`shards` is the node's own table. Sizes in bytes."""

    def __init__(self, folder: Folder, shards: Mapping[int, Shard], min_free_bytes: int, flush_bytes: int) -> None:
        self.disk_full = False
        self.used_bytes = 0
        self._folder, self._shards = folder, shards
        self._min_free_bytes, self._flush_bytes = min_free_bytes, flush_bytes
        self._horizons: dict[int, int] = {}  # per shard: what was due before is forgotten

    async def flush(self) -> None:
        for shard in list(self._shards.values()):
            await shard.flush()

    async def forget(self) -> None:
        """Forget what the ledger says is forgotten."""
        for number, shard in list(self._shards.items()):
            horizon = shard.replica.entry.horizon
            if shard.rebuilding or horizon <= self._horizons.get(number, 0):
                continue
            store = shard.store
            for _ in forget_before(store, horizon):
                await asyncio.sleep(0)
            # A dropped range gives its space back only when it is compacted.
            await asyncio.to_thread(store.compact, ROW, ROW + first_key_at(horizon))
            self._horizons[number] = horizon

    async def trim_targets(self, bus: Bus, before: int) -> None:
        """Drop what consumers have had time enough to read: appended before this time (epoch ms)."""
        for info in await bus.topics():
            if info.name not in (BUFFER, LEDGER):
                await bus.trim_older_than(info.name, before)

    async def measure(self) -> None:
        self.watch_disk()
        for shard in list(self._shards.values()):
            if shard.store.unflushed_bytes > self._flush_bytes:
                await shard.flush()
        self.used_bytes = await asyncio.to_thread(disk_bytes, self._folder.info.path)

    def watch_disk(self) -> None:
        free = self._folder.free_bytes()
        full = free < self._min_free_bytes
        if full != self.disk_full:
            self.disk_full = full
            log.warning(
                "disk has %d MiB free, %s messages below %d MiB", free >> 20, "refusing" if full else "accepting",
                self._min_free_bytes >> 20, extra={"action": "disk"},
            )  # fmt: skip

    def gauges(self) -> tuple[int, int]:
        """Bytes used by the data folder, and free on its disk."""
        return self.used_bytes, self._folder.free_bytes()
