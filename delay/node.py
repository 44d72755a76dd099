"""A delay node: the bus, all shards, and their housekeeping, in one process.

A node that meets a failing disk closes everything and opens it anew, exactly as after a crash, until it works again:
meanwhile requests are refused, and nothing that was accepted is touched. Where the books differ it stops loudly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from prometheus_client import CollectorRegistry

from duemq.bus.base import Bus
from duemq.delay.clean import forget_before, horizon_for
from duemq.delay.master import Pace
from duemq.delay.observe import NodeCollector, Observer
from duemq.delay.shard import Shard
from duemq.delay.targets import Targets
from duemq.delay.topics import BUFFER, INTERNAL, LEDGER
from duemq.election.base import Election
from duemq.model.errors import Fenced, Unavailable, first_of
from duemq.model.ids import IdCodec
from duemq.model.key import first_key_at
from duemq.storage.folder import Folder, disk_bytes
from duemq.storage.rocks import Memory
from duemq.storage.rows import ROW

log = logging.getLogger(__name__)

_REOPEN_S = 1.0


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Sizes in bytes, times in seconds. `target_partitions`: of topics made on first use, 0 = topics are never made."""

    pace: Pace = field(default_factory=Pace)
    gather_s: float = 0.008
    target_partitions: int = 1
    cache_bytes: int = 64 << 20
    write_buffer_bytes: int = 64 << 20
    flush_interval_s: float = 5.0
    flush_bytes: int = 32 << 20
    clean_interval_s: float = 60.0
    history_s: float = 24 * 3600.0
    retention_s: float = 7 * 24 * 3600.0
    min_free_bytes: int = 256 << 20


class Node:
    """Runs until stopped. `shards` are there while `why_not_ready` is None."""

    def __init__(
        self,
        folder: Folder,
        open_bus: Callable[[], Awaitable[Bus]],
        election: Election,
        options: NodeOptions,
        registry: CollectorRegistry,
        clock: Callable[[], int],
    ) -> None:
        self.folder, self.options, self.clock = folder, options, clock
        self.ids = IdCodec(folder.info.secret)
        self.bus: Bus
        self.targets: Targets
        self.shards: dict[int, Shard] = {}
        self.observer = Observer(registry)
        self.disk_full = False
        self.why_not_ready: str | None = "starting"
        self.ready = asyncio.Event()  # set once all shards have their master for the first time
        self._open_bus, self._election = open_bus, election
        self._ready: set[int] = set()
        self._used_bytes = 0
        self._horizons: dict[int, int] = {}  # per shard: what was due before is forgotten
        registry.register(
            NodeCollector(
                self.observer,
                lambda: [shard.gauges() for shard in self.shards.values()],
                lambda: (self._used_bytes, self.folder.free_bytes()),
                clock,
            )
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises Fatal (and what a bug raises) after closing everything."""
        while not stop.is_set():
            try:
                await self._open()
                await self._serve(stop)
            except* (Unavailable, Fenced) as group:
                reason = first_of(group)
                self.why_not_ready = f"the store or the log failed and is being opened anew: {reason}"
                log.error("node stopped its shards: %s", reason, extra={"action": "reopen"})
            finally:
                await self._close()
            if not stop.is_set():
                try:
                    async with asyncio.timeout(_REOPEN_S):
                        await stop.wait()
                except TimeoutError:
                    continue

    async def _open(self) -> None:
        info, options = self.folder.info, self.options
        self.shards = {}
        self.bus = await self._open_bus()
        for topic in sorted(INTERNAL):
            await self.bus.create_topic(topic, info.shards)
        await self.bus.create_topic(options.pace.dead_letter_topic, 1)
        self.targets = Targets(self.bus, options.target_partitions)
        await self.targets.resolve([topic.name for topic in await self.bus.topics() if topic.name not in INTERNAL])
        memory = Memory(options.cache_bytes, options.write_buffer_bytes)
        await self._election.join()
        for number in sorted(self._election.owned()):
            self.shards[number] = Shard(number, info.path / "shards" / f"{number:03d}", memory, self.bus, self.ids)
        self._watch_disk()

    async def _serve(self, stop: asyncio.Event) -> None:
        options = self.options
        scheduler = AsyncIOScheduler(timezone="UTC", job_defaults={"coalesce": True, "max_instances": 1})
        async with asyncio.TaskGroup() as group:
            failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def guarded(job: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
                # A scheduled job has no parent that would see it die: hand its error to one that has.
                async def run() -> None:
                    try:
                        await job()
                    except Exception as error:
                        if not failed.done():
                            failed.set_exception(error)

                return run

            async def watch_jobs() -> None:
                await failed

            tasks = [
                group.create_task(
                    shard.run(self, options.pace, options.gather_s, self._on_ready),
                    name=f"shard-{shard.number}",
                )
                for shard in self.shards.values()
            ]
            tasks.append(group.create_task(watch_jobs(), name="housekeeping"))
            scheduler.add_job(guarded(self.flush), "interval", seconds=options.flush_interval_s)
            scheduler.add_job(guarded(self.clean), "interval", seconds=options.clean_interval_s)
            scheduler.add_job(guarded(self._measure), "interval", seconds=1)
            scheduler.start()
            try:
                await stop.wait()
            finally:
                scheduler.shutdown(wait=False)
                for task in tasks:
                    task.cancel()

    def _on_ready(self, number: int) -> None:
        self._ready.add(number)
        if len(self._ready) == len(self.shards):
            self.why_not_ready = None
            self.ready.set()

    async def _close(self) -> None:
        """Shards first, for they write to the bus; the last flush shortens the next start. Idempotent."""
        self.why_not_ready = self.why_not_ready or "stopping"
        self._ready.clear()
        reason = Unavailable(self.why_not_ready)
        for shard in self.shards.values():
            shard.progress.fail(reason)
        await self._attempt(self.flush)
        # They stay where they are until the next opening: a request in flight meets a closed shard, which is a 503.
        for shard in self.shards.values():
            await self._attempt(shard.close)
        await self._election.leave()
        if hasattr(self, "bus"):
            await self._attempt(self.bus.close)

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> None:
        # A failing disk refuses the last flush. It is not needed: all that was acknowledged is in the synced log.
        try:
            await step()
        except Unavailable as error:
            log.warning("node could not write all it holds: %s", error, extra={"action": "close"})

    # --- housekeeping ---------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        for shard in list(self.shards.values()):
            await shard.flush()

    async def clean(self) -> None:
        """Forget what ended longer ago than the history is kept, and what consumers have had time enough to read."""
        now, options = self.clock(), self.options
        for shard in list(self.shards.values()):
            horizon = horizon_for(shard.store, now - int(options.history_s * 1000))
            if horizon == self._horizons.get(shard.number):
                continue
            for _ in forget_before(shard.store, horizon):
                await asyncio.sleep(0)
            # A dropped range gives its space back only when it is compacted.
            await asyncio.to_thread(shard.store.compact, ROW, ROW + first_key_at(horizon))
            self._horizons[shard.number] = horizon
        for info in await self.bus.topics():
            if info.name not in (BUFFER, LEDGER):
                await self.bus.trim_older_than(info.name, now - int(options.retention_s * 1000))

    async def _measure(self) -> None:
        self._watch_disk()
        for shard in list(self.shards.values()):
            if shard.store.unflushed_bytes > self.options.flush_bytes:
                await shard.flush()
        self._used_bytes = await asyncio.to_thread(disk_bytes, self.folder.info.path)

    def _watch_disk(self) -> None:
        free, least = self.folder.free_bytes(), self.options.min_free_bytes
        full = free < least
        if full != self.disk_full:
            self.disk_full = full
            log.warning(
                "disk has %d MiB free, %s messages below %d MiB", free >> 20, "refusing" if full else "accepting",
                least >> 20, extra={"action": "disk"},
            )  # fmt: skip
