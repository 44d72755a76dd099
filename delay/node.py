"""A delay node: a bus, replicas of shards, and their maintenance, in one process.

When its disk fails, a node closes everything and reopens it, exactly as after a crash, until the disk works again.
Until then it refuses requests; accepted messages are not affected. A failure of one shard affects only that shard: the
shard is `unfit` on this node, the other nodes get a report with the reason, and one of them leads it. Only a node
that runs alone stops, with a critical error, if its wheel and its store differ.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from apscheduler.triggers.cron import CronTrigger
from prometheus_client import CollectorRegistry

from duemq.background.loop import Loop
from duemq.background.stray_cancellation import StrayCancellation, own_cancellation_only
from duemq.bus.base import Bus
from duemq.cluster.clocks.clock_watch import EVERY_S, ClockCollector, ClockWatch
from duemq.cluster.topics.blocked import BlockedCollector, blocked_shards
from duemq.cluster.topics.internal_topics import create_logs
from duemq.cluster.topics.own_logs import CHECK_S
from duemq.cluster.topics.topic_states import TopicStates
from duemq.delay.core.disk_watermarks import Watermark, Watermarks
from duemq.delay.core.limits import CycleLimits
from duemq.delay.core.linger import ThreadShare
from duemq.delay.health import HealthTracker
from duemq.delay.imports.file_copies import FilePeers
from duemq.delay.maintenance import Maintenance
from duemq.delay.metrics import NodeCollector, Observer, ShardGauges
from duemq.delay.node_states import EFFECTS, NODE, Condition, NodeEvent, NodePhase
from duemq.delay.pending_topics import PendingTopics
from duemq.delay.probes.liveness import Liveness
from duemq.delay.probes.readiness import readiness
from duemq.delay.shard.shard import Shard
from duemq.delay.threads import in_thread
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.election.base import Election, Member, NodeHealth, NodeState
from duemq.model.disk_use import DiskUse
from duemq.model.errors import (
    DamagedFile,
    DiskFull,
    DuemqError,
    Fatal,
    Fenced,
    LogFailed,
    Rejected,
    Unavailable,
    first_of,
)
from duemq.model.messages.ids import IdCodec
from duemq.model.readiness import Readiness, Reason
from duemq.model.scope import FailureScope
from duemq.storage.data_folder import Folder, disk_use
from duemq.storage.imports.policy import ImportPolicy
from duemq.storage.rocksdb import Memory

log = logging.getLogger(__name__)

_REOPEN_S = 1.0
_FULL_S = 60.0  # a node with a full disk tries again after this time, or as soon as there is space
_FAILED_S = (1.0, 5.0, 20.0, 60.0)  # pauses after unexpected failures of a shard
_TRIM_S = 60.0
_LAG_S = 1.0
_FINISH_S = 5.0  # how long a stopping node waits for running cycles
_SOON = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Sizes in bytes, times in seconds.

    `topic_partitions`: the number of partitions for topics created on first use; 0 = topics are never created.

    `alone`: there is no other node. `trims`: the logs belong to this node, and keep only what it needs. `retention_s`:
    how long records are kept in a log that belongs to this node; `ledger_retention_s`: how long entries are kept in a
    shared ledger. `holds`: the shards that this node has replicas of, None = all. `purge_at`: hour and minute (UTC) of
    the daily purge; None = a purge every `purge_interval_s`. `stuck_after_s`: see `Liveness`.
    """

    cycle_limits: CycleLimits = field(default_factory=CycleLimits)
    alone: bool = True
    trims: bool = True
    holds: frozenset[int] | None = None
    linger_s: float = 0.0
    delay_files: TieringPolicy = field(default_factory=TieringPolicy)
    importing: ImportPolicy = field(default_factory=ImportPolicy)
    indexed_topics: tuple[str, ...] = ()
    topic_partitions: int = 1
    cache_bytes: int = 64 << 20
    write_buffer_bytes: int = 64 << 20
    flush_interval_s: float = 5.0
    flush_bytes: int = 32 << 20
    purge_interval_s: float = 60.0
    retention_s: float = 7 * 24 * 3600.0
    ledger_retention_s: float = 7 * 24 * 3600.0
    purge_at: tuple[int, int] | None = None
    marks: Watermarks = field(default_factory=Watermarks)
    max_clock_offset_ms: int = 500
    stuck_after_s: float = 60.0


class _JobFailed(Exception):
    """A background job of the node failed, with an error that affects at most one shard, topic or message."""


class Peers(FilePeers, Protocol):
    """Sources from which replicas, or single files of replicas, can be copied."""

    def can_copy(self, shard: int) -> bool:
        """Whether another node has a replica that is fit for copying."""
        ...

    async def fetch(self, shard: int, path: Path, least: int, room: Callable[[int], None]) -> bool:
        """Replace the closed replica at this path by a peer's, durably. False if no peer provided one.

        `least`: the ledger offset that the peer's replica must have reached. `room` raises DiskFull if this disk has no
        room for that many bytes. Raises DiskFull and StoreFailed for this disk.
        """
        ...


class Node:
    """Runs until stopped. `shards` is filled while the node is open."""

    def __init__(
        self,
        folder: Folder,
        open_bus: Callable[[], Awaitable[Bus]],
        election: Election,
        options: NodeOptions,
        registry: CollectorRegistry,
        clock: Callable[[], int],
        peers: Peers | None = None,
        jobs: Sequence[tuple[str, Callable[[], Awaitable[None]], float]] = (),
        measure: Callable[[Path], DiskUse] = disk_use,
        observer: Observer | None = None,
        check_logs: Callable[[Bus], Awaitable[None]] | None = None,
    ) -> None:
        """`check_logs`: raises TopicRefused if the logs belong to another cluster. `jobs`: further periodic jobs, as
        (name, work, interval in seconds). `measure`: returns the use of a folder's disk."""
        self.folder, self.options, self.election, self._check_logs = folder, options, election, check_logs
        self.watch = ClockWatch(clock, options.max_clock_offset_ms)
        self.clock = self.watch.delivering
        self.ids = IdCodec(folder.info.secret)
        self.delay_files, self.tiering_turn = options.delay_files, asyncio.Lock()
        self.importing, self.import_turn = options.importing, asyncio.Lock()
        self.indexed_topics = options.indexed_topics
        self.thread_share = ThreadShare()
        self.bus: Bus
        self.topic_states: TopicStates
        self.shards: dict[int, Shard] = {}
        self.observer = observer or Observer(registry)
        self.maintenance = Maintenance(folder, self.shards, options.marks, options.flush_bytes, registry, measure)
        self.health = HealthTracker(self.shards, self.watch)
        self.liveness = Liveness(self.shards, options.stuck_after_s, self._held_up, self.health.is_unreadable)
        self.phase = NODE.start
        self.condition: Condition | None = None  # None while the node is not serving
        self.why_not_ready: str | None = "starting"
        self._closed_for = Reason.STARTING  # why the node does not serve, while it has no condition
        self.ready = asyncio.Event()  # set once all shards have caught up for the first time
        self._topics = PendingTopics()
        self._dead: set[int] = set()  # shards that were stopped, because their data must not be trusted
        self._short: list[Member] = []  # nodes whose disks are short of space
        self._open_bus, self.peers, self._jobs = open_bus, peers, jobs
        registry.register(
            NodeCollector(
                self.observer, self._gauges, self.maintenance.gauges, self.clock, self._refusals, self._pending_topics
            )
        )
        registry.register(ClockCollector(self.watch))
        registry.register(BlockedCollector(lambda: getattr(self, "bus", None), self.clock))

    def _refusals(self) -> dict[str, str]:
        return self.topic_states.reasons(self.clock()) if hasattr(self, "topic_states") else {}

    def _pending_topics(self) -> Mapping[str, int]:
        return self._topics.counts(shard.store.topic_counts for shard in self.shards.values() if shard.leading)

    def _gauges(self) -> list[ShardGauges]:
        lag, stuck, dead = self.health.lag, self.liveness.check(), self._dead
        return [
            shard.gauges(lag.get(number, 0), stopped=number in dead, stuck=number in stuck)
            for number, shard in self.shards.items()
        ]

    def readiness(self) -> Readiness:
        """The node's readiness in the API's words; `why_not_ready` has the details."""
        own = readiness(
            self.condition, self._closed_for, self.health, self.liveness.check(), self._dead, self._topics_in_trouble()
        )
        if self.condition is None:
            return own
        blocked = {
            number: trouble._replace(state=str(self.shards[number].state))
            for number, trouble in blocked_shards(self.bus).items()
            if number in self.shards
        }
        return own._replace(shards=blocked | dict(own.shards))

    def _held_up(self) -> bool:
        """Whether an outside cause delays all shards."""
        return self.phase is not NodePhase.SERVING or self.bus.trouble() is not None or self.election.is_paused()

    def _topics_in_trouble(self) -> Collection[str]:
        return self.bus.misfits() if self.condition is not None else ()

    @property
    def why_closed(self) -> str | None:
        """Why the node can serve no request now; None if it can. Even then, some shards may be stopped, or the clock
        may be wrong."""
        serves = self.condition is not None and EFFECTS[self.condition].serves
        return None if serves else self.why_not_ready

    def short_of_space(self, shard: int) -> bool:
        """See `MasterContext`. All replicas forget the same history, so the fullest disk decides."""
        return self.maintenance.level >= Watermark.SHORTEN or any(member.has(shard) for member in self._short)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises Fatal, and the errors that bugs cause, after closing everything."""
        while not stop.is_set():
            pause = _REOPEN_S
            try:
                self._step(NodeEvent.START)
                await self._open()
                self._step(NodeEvent.OPENED)
                await self._serve(stop)
            except* (Unavailable, Fenced, StrayCancellation) as group:
                reason = first_of(group)
                pause = _FULL_S if isinstance(reason, DiskFull) else _REOPEN_S
                self._closed_for = Reason.REOPENING
                self.why_not_ready = f"the store or the log failed and is being reopened: {reason}"
                log.warning("node stopped its shards: %s", reason, extra={"action": "reopen"})
            finally:
                await self._close()
            await self._rest(stop, pause)

    def _step(self, event: NodeEvent) -> None:
        self.phase = NODE.next(self.phase, event)
        log.debug("node: %s (%s)", self.phase, event, extra={"action": "state"})

    async def _rest(self, stop: asyncio.Event, pause: float) -> None:
        """Wait before everything is reopened. A long wait ends as soon as the disk has space. On a full disk, reopening
        sooner would only claim shards and then fail at the next flush."""
        maintenance, loop = self.maintenance, asyncio.get_running_loop()
        until, free = loop.time() + pause, maintenance.disk.free + self.options.flush_bytes
        while not stop.is_set() and loop.time() < until:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), min(_REOPEN_S, max(until - loop.time(), 0)))
            maintenance.watch_disk()
            if maintenance.level < Watermark.REFUSE or maintenance.disk.free >= free:
                return

    async def _open(self) -> None:
        info, options = self.folder.info, self.options
        self.shards.clear()
        self.bus = await self._open_bus()
        await create_logs(self.bus, info.shards)
        if self._check_logs is not None:
            await self._check_logs(self.bus)
        self.topic_states = TopicStates(self.bus, options.topic_partitions)
        await self.topic_states.learn([options.cycle_limits.dead_letter_topic])
        self._memory = Memory(options.cache_bytes, options.write_buffer_bytes)
        await self._open_shards(sorted(range(info.shards) if options.holds is None else options.holds))
        self.maintenance.watch_disk()
        await self.watch.measure(self.bus)
        await self.election.join()

    async def _open_shards(self, numbers: Sequence[int]) -> None:
        """Open the replicas concurrently, because opening each one waits for the disk several times. If some fail,
        raises one of the errors once all have ended; `shards` then contains the open replicas."""
        opened = await asyncio.gather(
            *(in_thread(self._shard, number, self._memory) for number in numbers), return_exceptions=True
        )
        self.shards.update({shard.number: shard for shard in opened if isinstance(shard, Shard)})
        for failure in opened:
            if isinstance(failure, BaseException):
                raise failure

    def _shard(self, number: int, memory: Memory) -> Shard:
        self.observer.begin(number)  # before the first scrape
        info, trims = self.folder.info, self.options.trims
        path = info.path / "shards" / f"{number:03d}"
        return Shard(number, info.shards, path, memory, self.bus, self.ids, trims=trims, cluster=info.cluster)

    async def _serve(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            masters = [
                group.create_task(self._keep_shard(number, stop), name=f"shard-{number}") for number in self.shards
            ]
            others = [group.create_task(loop.run(), name=loop.name) for loop in self._loops()]
            try:
                await stop.wait()
                self._closed_for = Reason.STOPPING
                for shard in self.shards.values():
                    shard.stop()
                if masters:
                    await asyncio.wait(masters, timeout=_FINISH_S)
            finally:
                for task in (*masters, *others):
                    task.cancel()

    def _loops(self) -> list[Loop]:
        """The node's background jobs. A bug in one of them does not stop the others."""
        options, maintenance = self.options, self.maintenance
        jobs = [
            ("flush", maintenance.flush, options.flush_interval_s),
            ("purge of a full disk", self.purge_if_full, 1.0),
            ("disk", maintenance.measure, 1.0),
            ("health", self.check_itself, 1.0),
            ("liveness", self.liveness.watch, 1.0),
            ("clock", self._watch_clock, EVERY_S),
            *self._jobs,
        ]
        if not options.trims:
            jobs.append(("old ledger entries", self._trim_ledgers, _TRIM_S))
        if self._check_logs is not None:
            jobs.append(("own logs", self._check_own_logs, CHECK_S))
        first_purge_s = until_purge(options, _utc_now())
        return [
            Loop("election", self._watch_election, expected=(), ends_on=(Exception,), every_s=0.0),
            self._job("purge", self._purge, first_purge_s),
            *(self._job(name, job, seconds) for name, job, seconds in jobs),
        ]

    def _job(self, name: str, work: Callable[[], Awaitable[float | None]], seconds: float) -> Loop:
        async def turn() -> float | None:
            try:
                return await work()
            except (Unavailable, Fenced) as error:
                if error.scope <= FailureScope.SHARD:  # the job and everything else continue
                    raise _JobFailed(str(error)) from error
                raise

        return Loop(
            name, turn, expected=(_JobFailed,), ends_on=(Unavailable, Fenced, Fatal), every_s=seconds, delay_s=seconds,
            first_s=1.0, longest_s=60.0, on_failure=lambda error: self.observer.failures.labels("upkeep").inc(),
        )  # fmt: skip

    async def _keep_shard(self, number: int, stop: asyncio.Event) -> None:
        with own_cancellation_only():
            await self._run_shard(number, stop)

    async def _run_shard(self, number: int, stop: asyncio.Event) -> None:
        """Run a shard until the node stops. Its failures do not affect other shards, unless the disk or the log
        fails."""
        loop, failures = asyncio.get_running_loop(), 0
        while not stop.is_set():
            shard, began = self.shards[number], loop.time()
            try:
                with own_cancellation_only():
                    await shard.run(self, self.options.cycle_limits, self.options.linger_s)
                return
            except Fatal as error:
                if self.options.alone and not isinstance(error, DamagedFile):
                    raise
                log.critical("shard %d stops: %s", number, error, extra={"action": "stop", "shard": number})
                self._dead.add(number)
                self._leave_out(shard, f"shard {number} is stopped: {error}")
                await self._tell()
                return
            except Exception as error:
                if isinstance(error, DuemqError) and error.scope > FailureScope.SHARD:
                    raise
                log.exception("shard %d failed: it is opened again", number, extra={"action": "fail", "shard": number})
                self.observer.failures.labels(f"shard {number}").inc()
                self._leave_out(shard, f"shard {number} failed, and is opened again: {error!r}")
                await self._tell()
            if loop.time() - began > _FAILED_S[-1]:
                failures = 0
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _FAILED_S[min(failures, len(_FAILED_S) - 1)])
            failures += 1
            await shard.close()
            self.shards[number] = self._shard(number, self._memory)

    def _leave_out(self, shard: Shard, reason: str) -> None:
        shard.fail(Unavailable(reason, retry_after_s=60))
        self.on_unfit(shard.number, reason)
        self._check_ready()

    async def _close(self) -> None:
        """Close everything, the shards first, because they write to the bus. The last flush shortens the next start.
        Idempotent."""
        self._step(NodeEvent.END)
        self.condition, self.why_not_ready = None, self.why_not_ready or "stopping"
        self.health.caught_up.clear()
        self.health.unfit.clear()
        self._dead.clear()
        reason = Unavailable(self.why_not_ready)
        for shard in self.shards.values():
            shard.progress.fail(reason)
        await self.election.leave()
        await self._attempt(self.maintenance.flush)
        # Closed shards stay in `shards` until the node is reopened, so that a request in flight gets a 503.
        for shard in self.shards.values():
            await self._attempt(shard.close)
        if hasattr(self, "topic_states"):
            await self.topic_states.close()
        if hasattr(self, "bus"):
            await self._attempt(self.bus.close)
        self._step(NodeEvent.CLOSED)

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> None:
        # A failing disk refuses the last flush. It is not needed: everything acknowledged is in the synced log.
        try:
            await step()
        except Unavailable as error:
            log.warning("node could not flush everything: %s", error, extra={"action": "close"})

    # --- its place among others -----------------------------------------------------------------------------------

    def on_ready(self, shard: int) -> None:
        """See `ShardHost`."""
        self.health.caught_up.add(shard)
        self.health.unfit.pop(shard, None)
        self._judge()
        self._check_ready()

    def on_unfit(self, shard: int, reason: str) -> None:
        """See `ShardHost`."""
        self.health.caught_up.discard(shard)
        self.health.unfit[shard] = reason
        self._judge()

    def _check_ready(self) -> None:
        if all(map(self.health.is_known, self.shards)):
            self.ready.set()

    def _judge(self) -> NodeHealth:
        maintenance = self.maintenance
        self.health.see_log(self.bus)
        self.condition, health = self.health.judge(
            self.bus.trouble(), self.election.draining(), int(maintenance.level), maintenance.why_full() or "",
            self.topic_states.troubles(self.clock()), alone=self.options.alone,
        )  # fmt: skip
        self.why_not_ready = None if health.state in (NodeState.READY, NodeState.DRAINING) else health.reason
        return health

    async def _tell(self) -> None:
        health = self._judge()
        if self.health.worth_telling(health):
            await self.election.report(health)

    async def _watch_election(self) -> None:
        await self._tell()
        await self.election.wait_for_change(0.2 if self.why_not_ready else None)
        for shard in self.shards.values():
            shard.wake()
        for number in list(self._dead):  # this node runs no master for it: another node may lead it
            await self.election.release(number)

    async def check_itself(self) -> None:
        self._short = [member for member in self.election.members() if member.health.watermark >= Watermark.SHORTEN]
        await self._tell()
        self._check_ready()
        if self.options.alone:
            return
        try:
            async with asyncio.timeout(_LAG_S):  # a silent partition must not delay the rest of the report
                await self.health.measure_lag(self.bus)
        except (LogFailed, TimeoutError) as error:
            log.warning("node cannot ask the log how far it is: %r", error, extra={"action": "lag"})
        await self._tell()

    async def _trim_ledgers(self) -> None:
        before = self.clock() - int(self.options.ledger_retention_s * 1000)
        for shard in list(self.shards.values()):
            if self.health.is_unreadable(shard.number):
                continue  # waiting for it would leave no time for the others
            try:
                await shard.trim_ledger(before)
            except LogFailed as error:
                log.warning(
                    "shard %d: old entries of the ledger cannot be deleted: %s", shard.number, error,
                    extra={"action": "trim", "shard": shard.number},
                )  # fmt: skip

    def recover(self, number: int) -> None:
        """Make this node's replica of a shard the truth, because no other one can be: see `rebase`.

        Raises Rejected `unknown_shard`, or `not_needed` if the shard has a current replica.
        """
        shard, unfit = self.shards.get(number), self.health.unfit
        if shard is None:
            raise Rejected("unknown_shard", f"this node has no replica of shard {number}", "shard")
        if number not in unfit and shard.waits() is None:
            raise Rejected("not_needed", f"nothing is wrong with shard {number} here: it needs no recovery", "shard")
        if shard.stopped:
            raise Rejected(
                "not_needed",
                f"{unfit[number]}. This replica is not to be trusted: stop the node, remove the folder of this shard "
                "and start the node again, to copy a peer's replica; or restore a backup",
                "shard",
            )  # fmt: skip
        for member in self.election.members():
            if member.health.state in (NodeState.READY, NodeState.DRAINING) and member.can_lead(number):
                raise Rejected("not_needed", f"shard {number} is current on node {member.name}", "shard")
        shard.recover()

    async def _check_own_logs(self) -> None:
        assert self._check_logs is not None
        with suppress(Unavailable):
            await self._check_logs(self.bus)

    async def _watch_clock(self) -> None:
        await self.watch.measure(self.bus)
        await self._tell()

    def may_lead(self) -> bool:
        """See `ShardHost`."""
        return self.watch.why_out() is None

    def has_peer(self, shard: int) -> bool:
        """See `ShardHost`."""
        return self.peers is not None and self.peers.can_copy(shard)

    async def rebuild(self, shard: int, path: Path, least: int) -> bool:
        """See `ShardHost`."""
        return self.peers is not None and await self.peers.fetch(shard, path, least, self.maintenance.require_room)

    async def checkpoint(self, shard: int, into: Path) -> None:
        """Copy a shard's store into a snapshot for peers. Raises Unavailable if the shard must not be copied from
        here."""
        if self.why_not_ready is not None or not self.health.is_fit(shard):
            raise Unavailable(f"shard {shard} cannot be copied from this node, which could not lead it")
        await self.shards[shard].checkpoint(into)

    async def clean(self) -> None:
        """Drop forgotten history and, in a log that belongs to this node, records past their retention."""
        await self.maintenance.clean(*self._own_log())

    async def _purge(self) -> float:
        await self.clean()
        return until_purge(self.options, _utc_now())

    async def purge_if_full(self) -> None:
        """Purge ahead of schedule if the disk requires it."""
        await self.maintenance.purge_if_full(*self._own_log())

    def _own_log(self) -> tuple[Bus | None, int]:
        before = self.clock() - int(self.options.retention_s * 1000)
        return (self.bus if self.options.trims else None), before


def until_purge(options: NodeOptions, now: datetime) -> float:
    """Seconds until a node's next scheduled purge."""
    if options.purge_at is None:
        return options.purge_interval_s
    hour, minute = options.purge_at
    # A purge that began shortly before its scheduled time is not repeated at that time.
    fire: datetime = CronTrigger(hour=hour, minute=minute, timezone=UTC).get_next_fire_time(None, now + _SOON)
    return (fire - now).total_seconds()


def _utc_now() -> datetime:
    return datetime.now(UTC)
