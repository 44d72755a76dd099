"""The periodic work of a node: flushing, purging, and checking its disk."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter

from duemq.bus.base import Bus
from duemq.cluster.topics.internal_topics import INTERNAL
from duemq.delay.core.disk_watermarks import Watermark, Watermarks
from duemq.delay.metrics import DiskGauges
from duemq.delay.shard.shard import Shard
from duemq.model.disk_use import DiskUse
from duemq.model.errors import DiskFull
from duemq.storage.data_folder import Folder, disk_bytes, disk_use

log = logging.getLogger(__name__)

_AGAIN_S = 60.0  # between unscheduled purges
SCHEDULE, DISK = "schedule", "disk"  # triggers of a purge
_DOES = {
    Watermark.FREE: "nothing to do about it",
    Watermark.CLEAN: "purging at once",
    Watermark.SHORTEN: "purging at once, with a shorter history",
    Watermark.REFUSE: "refusing new messages, and purging at once with a shorter history",
}


class Maintenance:
    """Does the periodic work of a node. `shards` is the node's own dict. Sizes in bytes."""

    def __init__(
        self,
        folder: Folder,
        shards: Mapping[int, Shard],
        marks: Watermarks,
        flush_bytes: int,
        registry: CollectorRegistry,
        measure: Callable[[Path], DiskUse] = disk_use,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.level = Watermark.FREE
        self.disk = DiskUse(0, 0)
        self._folder_bytes = 0
        self._path, self._shards, self._marks, self._flush_bytes = folder.info.path, shards, marks, flush_bytes
        self._measure, self._monotonic = measure, monotonic
        self._one = asyncio.Lock()
        self._purged_at = float("-inf")  # time of the last purge because of the disk
        self._purges = Counter(
            "duemq_purges_total", "Purges of forgotten messages, by what started them", ["trigger"], registry=registry
        )
        for trigger in (SCHEDULE, DISK):
            self._purges.labels(trigger)

    async def flush(self) -> None:
        for shard in list(self._shards.values()):
            if not shard.rebuilding:  # a rebuilding shard has its lock while it copies a peer's replica
                await shard.flush()

    # --- purges ---------------------------------------------------------------------------------------------------

    async def clean(self, bus: Bus | None, before: int, trigger: str = SCHEDULE) -> None:
        """Drop forgotten history. In a log that belongs to this node (`bus`), also drop records appended before the
        time `before` (epoch ms)."""
        async with self._one:
            started = self._monotonic()
            shard_count = 0
            for shard in list(self._shards.values()):
                shard_count += await shard.clean()
            if bus is not None:
                for info in await bus.topics():
                    if info.name not in INTERNAL:
                        await bus.trim_older_than(info.name, before)
                if self.level >= Watermark.CLEAN:
                    await bus.reclaim()
        self._purges.labels(trigger).inc()
        if shard_count:
            log.info(
                "node dropped the forgotten history of %d shards in %.1f s (%s)", shard_count,
                self._monotonic() - started, trigger, extra={"action": "purge"},
            )  # fmt: skip

    async def purge_if_full(self, bus: Bus | None, before: int) -> None:
        """Purge if a watermark requires it: as soon as there is history to drop, otherwise once a minute."""
        if self.level < Watermark.CLEAN or self._one.locked():
            return
        ready = any(shard.to_purge for shard in self._shards.values())
        if ready or self._monotonic() - self._purged_at >= _AGAIN_S:
            self._purged_at = self._monotonic()
            await self.clean(bus, before, DISK)

    # --- the disk -------------------------------------------------------------------------------------------------

    async def measure(self) -> None:
        self.watch_disk()
        for shard in list(self._shards.values()):
            if not shard.rebuilding and shard.store.unflushed_bytes > self._flush_bytes:
                await shard.flush()
        self._folder_bytes = await asyncio.to_thread(disk_bytes, self._path)

    def watch_disk(self) -> None:
        self.disk = self._measure(self._path)
        level = self._marks.level(self.disk, self.level)
        if level != self.level:
            log.log(
                logging.WARNING if level > self.level or self.level == Watermark.REFUSE else logging.INFO,
                "disk of %s is %.1f %% full, %d MiB are free: %s", self._path, self.disk.percent,
                self.disk.free >> 20, _DOES[level], extra={"action": "disk", "level": int(level)},
            )  # fmt: skip
            self.level = level

    def why_full(self) -> str | None:
        """Why new messages are refused; None if they are not."""
        return self._marks.why_full(self._path, self.disk) if self.level is Watermark.REFUSE else None

    def require_room(self, byte_count: int) -> None:
        """Raise DiskFull if writing these bytes would reach the mark at which messages are refused."""
        used, free = self._measure(self._path)
        after = DiskUse(used + byte_count, max(free - byte_count, 0))
        if byte_count and self._marks.level(after, Watermark.FREE) is Watermark.REFUSE:
            why = self._marks.why_full(self._path, after)
            raise DiskFull(f"a copy takes {byte_count >> 20} MiB, and there are {free >> 20} MiB free. With it {why}")

    def gauges(self) -> DiskGauges:
        return DiskGauges(self._folder_bytes, self.disk, self.level)
