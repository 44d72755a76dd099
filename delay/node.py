"""A delay node: a bus, replicas of shards, and their upkeep, in one process.

A node that meets a failing disk closes everything and opens it anew, exactly as after a crash, until it works again:
meanwhile requests are refused, and nothing that was accepted is touched. Where the books differ a node that is alone
stops loudly; one of several takes itself out of the election and says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from prometheus_client import CollectorRegistry

from duemq.bus.base import Bus
from duemq.delay.adopter import AdoptPolicy
from duemq.delay.far_policy import FarPolicy
from duemq.delay.gather import Gathering
from duemq.delay.observe import NodeCollector, Observer, ShardGauges
from duemq.delay.pace import Pace
from duemq.delay.shard import Shard
from duemq.delay.standing import StandingKeeper
from duemq.delay.targets import Targets
from duemq.delay.topics import INTERNAL
from duemq.delay.upkeep import Upkeep
from duemq.delay.watermarks import Level, Watermarks
from duemq.election.base import Election, Member, NodeState, Standing
from duemq.model.errors import DamagedFile, Fatal, Fenced, LogFailed, Unavailable, first_of
from duemq.model.ids import IdCodec
from duemq.storage.folder import DiskUse, Folder, disk_use
from duemq.storage.rocks import Memory

log = logging.getLogger(__name__)
# It warns of every job that is still busy when its turn comes again, as all are while a broker is away.
logging.getLogger("apscheduler").setLevel(logging.ERROR)

_REOPEN_S = 1.0
_FINISH_S = 5.0  # at stop, for cycles that run
_LATE_S = 3600  # a daily cleaning is begun so late where the process was busy at its time


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Sizes in bytes, times in seconds. `target_partitions`: of topics made on first use, 0 = topics are never made.

    `alone`: there is no other node. `trims`: the logs are this node's own, and keep what it needs and no more.
    `holds`: the shards it has replicas of, None = all. `clean_at`: hour and minute (UTC) of the one cleaning a day;
    None = every `clean_interval_s`.
    """

    pace: Pace = field(default_factory=Pace)
    alone: bool = True
    trims: bool = True
    holds: frozenset[int] | None = None
    gathering: Gathering = field(default_factory=Gathering)
    far: FarPolicy = field(default_factory=FarPolicy)
    adopting: AdoptPolicy = field(default_factory=AdoptPolicy)
    target_partitions: int = 1
    cache_bytes: int = 64 << 20
    write_buffer_bytes: int = 64 << 20
    flush_interval_s: float = 5.0
    flush_bytes: int = 32 << 20
    clean_interval_s: float = 60.0
    retention_s: float = 7 * 24 * 3600.0
    clean_at: tuple[int, int] | None = None
    marks: Watermarks = field(default_factory=Watermarks)
    max_clock_offset_ms: int = 500


class Peers(Protocol):
    """Where a replica can be had from."""

    def have(self, shard: int) -> bool:
        """Whether there is one to ask."""
        ...

    async def fetch(self, shard: int, path: Path) -> bool:
        """Replace the closed replica at this path by a peer's, durably; False where none could be had."""
        ...


class Node:
    """Runs until stopped. `shards` are there while it is open."""

    def __init__(
        self,
        folder: Folder,
        open_bus: Callable[[], Awaitable[Bus]],
        election: Election,
        options: NodeOptions,
        registry: CollectorRegistry,
        clock: Callable[[], int],
        peers: Peers | None = None,
        jobs: Sequence[tuple[Callable[[], Awaitable[None]], float]] = (),
        measure: Callable[[Path], DiskUse] = disk_use,
    ) -> None:
        """`jobs`: further work to be done every so many seconds. `measure`: says how full the disk of a folder is."""
        self.folder, self.options, self.clock, self.election = folder, options, clock, election
        self.ids = IdCodec(folder.info.secret)
        self.far, self.far_turn = options.far, asyncio.Lock()
        self.adopting, self.adopt_turn = options.adopting, asyncio.Lock()
        self.bus: Bus
        self.targets: Targets
        self.shards: dict[int, Shard] = {}
        self.observer = Observer(registry)
        self.upkeep = Upkeep(folder, self.shards, options.marks, options.flush_bytes, registry, measure)
        self.standing = StandingKeeper(self.shards, clock, options.max_clock_offset_ms)
        self.why_not_ready: str | None = "starting"
        self.ready = asyncio.Event()  # set once all shards have caught up for the first time
        self._dead: set[int] = set()  # shards whose books differ
        self._short: list[Member] = []  # nodes that are short of space
        self._open_bus, self._peers, self._jobs = open_bus, peers, jobs
        registry.register(
            NodeCollector(
                self.observer, self._gauges, self.upkeep.gauges, clock, lambda: self.standing.clock_offset_ms,
                self._refusals,
            )
        )  # fmt: skip

    def _refusals(self) -> dict[str, str]:
        return self.targets.reasons(self.clock()) if hasattr(self, "targets") else {}

    def _gauges(self) -> list[ShardGauges]:
        lag = self.standing.lag
        return [shard.gauges(lag.get(number, 0), stopped=number in self._dead) for number, shard in self.shards.items()]

    @property
    def why_closed(self) -> str | None:
        """Why no request can be served just now; some shards may be stopped where it can."""
        return None if self.why_not_ready == self.standing.why_stopped() else self.why_not_ready

    def short_of_space(self, shard: int) -> bool:
        """See `Context`. What is forgotten is the same for all replicas, so the fullest disk decides."""
        return self.upkeep.level >= Level.SHORTEN or any(member.has(shard) for member in self._short)

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
        self.shards.clear()
        self.bus = await self._open_bus()
        for topic in sorted(INTERNAL):
            await self.bus.create_log(topic, info.shards)
        self.targets = Targets(self.bus, options.target_partitions)
        await self.targets.learn([options.pace.dead_letter_topic])
        memory = Memory(options.cache_bytes, options.write_buffer_bytes)
        for number in sorted(range(info.shards) if options.holds is None else options.holds):
            path = info.path / "shards" / f"{number:03d}"
            self.shards[number] = Shard(number, info.shards, path, memory, self.bus, self.ids, trims=options.trims)
        self.upkeep.watch_disk()
        await self.standing.measure_clock(self.bus)
        await self.election.join()

    async def _serve(self, stop: asyncio.Event) -> None:
        options, upkeep = self.options, self.upkeep
        scheduler = AsyncIOScheduler(timezone="UTC", job_defaults={"coalesce": True, "max_instances": 1})
        async with asyncio.TaskGroup() as group:
            failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def guarded(job: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
                # A scheduled job has no parent that would see it die: hand its error to one that has.
                async def run() -> None:
                    try:
                        await job()
                    except asyncio.CancelledError:
                        return  # only the scheduler cancels jobs, at its end, and reports each as a failure
                    except Exception as error:
                        if not failed.done():
                            failed.set_exception(error)

                return run

            async def watch_jobs() -> None:
                await failed

            masters = [
                group.create_task(self._run_shard(shard), name=f"shard-{number}")
                for number, shard in self.shards.items()
            ]
            others = [
                group.create_task(watch_jobs(), name="upkeep"),
                group.create_task(self._watch_election(), name="election"),
            ]
            scheduler.add_job(guarded(upkeep.flush), "interval", seconds=options.flush_interval_s)
            scheduler.add_job(guarded(self.clean), cleaning_trigger(options), misfire_grace_time=_LATE_S)
            scheduler.add_job(guarded(self.clean_if_full), "interval", seconds=1)
            scheduler.add_job(guarded(upkeep.measure), "interval", seconds=1)
            scheduler.add_job(guarded(self._look_at_itself), "interval", seconds=1)
            for job, seconds in self._jobs:
                scheduler.add_job(guarded(job), "interval", seconds=seconds)
            scheduler.start()
            try:
                await stop.wait()
                for shard in self.shards.values():
                    shard.stop()
                if masters:
                    await asyncio.wait(masters, timeout=_FINISH_S)
            finally:
                scheduler.shutdown(wait=False)
                for task in (*masters, *others):
                    task.cancel()

    async def _run_shard(self, shard: Shard) -> None:
        try:
            await shard.run(self, self.options.pace, self.options.gathering)
        except Fatal as error:
            self._dead.add(shard.number)
            if not self.options.alone:
                self.standing.take_out(str(error))
            elif isinstance(error, DamagedFile):
                self._stop(shard, str(error))
            else:
                raise
            await self._tell()

    def _stop(self, shard: Shard, reason: str) -> None:
        """Of a node that is alone the other shards go on: nothing of them is wrong."""
        self.standing.stopped[shard.number] = reason
        log.critical("shard %d stops: %s", shard.number, reason, extra={"action": "stop", "shard": shard.number})
        shard.progress.fail(Unavailable(f"shard {shard.number} is stopped: {reason}", retry_after_s=60))
        self._look_whether_ready()

    async def _close(self) -> None:
        """Shards first, for they write to the bus; the last flush shortens the next start. Idempotent."""
        self.why_not_ready = self.why_not_ready or "stopping"
        self.standing.caught_up.clear()
        self._dead.difference_update(self.standing.stopped)
        self.standing.stopped.clear()
        reason = Unavailable(self.why_not_ready)
        for shard in self.shards.values():
            shard.progress.fail(reason)
        await self.election.leave()
        await self._attempt(self.upkeep.flush)
        # They stay where they are until the next opening: a request in flight meets a closed shard, which is a 503.
        for shard in self.shards.values():
            await self._attempt(shard.close)
        if hasattr(self, "targets"):
            await self.targets.close()
        if hasattr(self, "bus"):
            await self._attempt(self.bus.close)

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> None:
        # A failing disk refuses the last flush. It is not needed: all that was acknowledged is in the synced log.
        try:
            await step()
        except Unavailable as error:
            log.warning("node could not write all it holds: %s", error, extra={"action": "close"})

    # --- its place among others -----------------------------------------------------------------------------------

    def on_ready(self, shard: int) -> None:
        """See `Surroundings`."""
        self.standing.caught_up.add(shard)
        self._judge()
        self._look_whether_ready()

    def on_lost(self, shard: int) -> None:
        """See `Surroundings`. Meanwhile another node is to be its master."""
        self.standing.caught_up.discard(shard)
        self._judge()

    def _look_whether_ready(self) -> None:
        if self.shards.keys() <= self.standing.caught_up | self.standing.stopped.keys():
            self.ready.set()

    def _judge(self) -> Standing:
        upkeep = self.upkeep
        standing = self.standing.judge(
            self.bus.trouble(), self.election.draining(), int(upkeep.level), upkeep.why_full() or "",
            self.targets.troubles(self.clock()),
        )  # fmt: skip
        self.why_not_ready = None if standing.state in (NodeState.READY, NodeState.DRAINING) else standing.reason
        return standing

    async def _tell(self) -> None:
        standing = self._judge()
        if self.standing.worth_telling(standing):
            await self.election.report(standing)

    async def _watch_election(self) -> None:
        while True:
            await self._tell()
            await self.election.changed(0.2 if self.why_not_ready else None)
            for shard in self.shards.values():
                shard.wake()
            for number in list(self._dead):  # its master is gone: another node may have it
                await self.election.release(number)

    async def _look_at_itself(self) -> None:
        self._short = [member for member in self.election.members() if member.standing.watermark >= Level.SHORTEN]
        if self.options.alone:
            await self._tell()
            return
        try:
            await self.standing.measure_lag(self.bus)
            await self.standing.measure_clock(self.bus)
        except LogFailed as error:
            log.warning("node cannot ask the log how far it is: %s", error, extra={"action": "lag"})
        await self._tell()

    def has_peer(self, shard: int) -> bool:
        """See `Surroundings`."""
        return self._peers is not None and self._peers.have(shard)

    async def rebuild(self, shard: int, path: Path) -> bool:
        """See `Surroundings`."""
        return self._peers is not None and await self._peers.fetch(shard, path)

    async def checkpoint(self, shard: int, into: Path) -> None:
        """For the snapshots that peers copy. Raises Unavailable for a shard that is not to be copied from here."""
        held = self.shards.get(shard)
        if held is None or held.rebuilding or self.why_not_ready is not None:
            raise Unavailable(f"shard {shard} cannot be copied from here")
        await held.checkpoint(into)

    async def clean(self) -> None:
        """Drop what is forgotten; of a log of our own also what consumers have had time enough to read."""
        await self.upkeep.clean(*self._own_log())

    async def clean_if_full(self) -> None:
        """The same out of turn, where the disk asks for it."""
        await self.upkeep.clean_if_full(*self._own_log())

    def _own_log(self) -> tuple[Bus | None, int]:
        before = self.clock() - int(self.options.retention_s * 1000)
        return (self.bus if self.options.trims else None), before


def cleaning_trigger(options: NodeOptions) -> CronTrigger | IntervalTrigger:
    """When a node cleans, whatever its disk is like."""
    if options.clean_at is None:
        return IntervalTrigger(seconds=options.clean_interval_s, timezone="UTC")
    hour, minute = options.clean_at
    return CronTrigger(hour=hour, minute=minute, timezone="UTC")
