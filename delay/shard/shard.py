"""A shard on this node: standby or master, as the election decides.

The table of its states is in `states.py`; the *States* page of `make docs` shows it as a diagram.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from time import monotonic
from typing import Any

from duemq.bus.base import Bus, Subscription, UnknownTopic, WriteRefused
from duemq.cluster.shards.progress import Progress
from duemq.cluster.topics.internal_topics import BUFFER, LEDGER, committer_name
from duemq.delay.core.limits import CycleLimits
from duemq.delay.core.linger import Linger
from duemq.delay.imports.file_copies import FileCopy
from duemq.delay.imports.file_importer import FileImporter
from duemq.delay.indexing.index_worker import IndexWorker
from duemq.delay.indexing.topic_counter import TopicCounter
from duemq.delay.metrics import ShardGauges, TieringCounts
from duemq.delay.replica.replica import Replica, Tiers
from duemq.delay.replica.retention import has_ends, has_history, purge_before
from duemq.delay.shard.master import Master
from duemq.delay.shard.shard_host import ShardHost
from duemq.delay.shard.states import SHARD, ShardEvent, ShardState
from duemq.delay.shard.takeover import append_barrier, rebase
from duemq.delay.threads import in_thread
from duemq.delay.tiering.tiering import TieringWorker
from duemq.model.errors import Behind, DamagedFile, DiskFull, Fenced, ForeignLog, StoreFailed, Unavailable
from duemq.model.failpoint import Failpoint, no_failpoint
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import first_key_at
from duemq.model.scope import FailureScope
from duemq.storage.checkpoint.checkpoint import make_checkpoint
from duemq.storage.checkpoint.replica_swap import PartialReplica, finish_replacement
from duemq.storage.jobs.parent import lines_of
from duemq.storage.keyspace import ROW
from duemq.storage.rocksdb import Memory
from duemq.storage.shard.store import ShardStore

log = logging.getLogger(__name__)

_SILENCE_S = 60.0  # longest silence of an import process: after that, a mount is assumed to hang
_TAKE_IN = lines_of("duemq.storage.imports.import_process", _SILENCE_S)
_AGAIN_S = 600.0  # the same file damaged again within this time: the peer's copy is damaged, too
_STANDBY_S = 0.5  # how often a standby checks without being woken
_BACK_OFF_S = (0.02, 0.1, 0.3, 1.0)  # pauses after consecutive failures
_WELL_S = 1.0  # after a role has lasted this long, the next failure counts as the first one
_BEHIND_S = (1.0, 2.0, 5.0, 10.0)  # pauses between searches for a peer to copy
_COPIED_S = (1.0, 10.0, 60.0, 300.0)  # pauses after consecutive copies that did not make the replica current


class Shard:
    """One replica with its store open, from `run` to `close`."""

    def __init__(
        self,
        number: int,
        shards: int,
        path: Path,
        memory: Memory,
        bus: Bus,
        ids: IdCodec,
        *,
        trims: bool = True,
        cluster: str = "",
    ) -> None:
        """`shards`: the cluster's number of shards; `cluster`: the cluster's id. `trims`: the logs belong to this node
        alone, and need not keep flushed records."""
        self.number, self._shards, self._path = number, shards, path
        self._memory, self._bus, self._ids, self._trims, self._cluster = memory, bus, ids, trims, cluster
        self.progress = Progress()
        self.tiering_counts = TieringCounts()
        self._failure: BaseException | None = None
        self._damage: tuple[str, float] | None = None  # the damaged file that led to the last rebuild, and when (s)
        self.behind = self._copies = 0  # attempts to catch up since the replica was last current; those that copied
        self._no_copy = ""  # why this disk could not store a copy, as a sentence
        self.state = SHARD.start
        self.pulse = monotonic()  # see `Liveness`
        self._flushing = asyncio.Lock()
        self._stopping = False
        self._recovery = asyncio.Event()  # set when an operator orders this replica to become the truth
        self._ledger_start = 0  # entries below this offset were trimmed
        self._ledger_emptied = False  # something other than this master dropped the last entry, too
        self._importer: FileImporter | None = None
        self._buffer: Subscription | None = None
        self._ledger: Subscription | None = None
        self._open()

    def _open(self) -> None:
        self.store = ShardStore(self._path, self._memory, self._ids)
        self.replica = Replica(self.number, self.store, self._ids, self._shards, self._cluster)
        self._purged_horizons = (0, 0)  # the horizons (ms) below which history has been dropped

    # --- states ---------------------------------------------------------------------------------------------------

    def _step(self, event: ShardEvent) -> None:
        before, self.state = self.state, SHARD.next(self.state, event)
        log.debug(
            "shard %d: %s -> %s (%s)", self.number, before, self.state, event,
            extra={"action": "state", "shard": self.number},
        )  # fmt: skip

    @property
    def leading(self) -> bool:
        return self.state is ShardState.LEADING

    @property
    def rebuilding(self) -> bool:
        """Whether the store is closed."""
        return self.state in (ShardState.REBUILDING, ShardState.CLOSED)

    @property
    def stopped(self) -> bool:
        """Whether the node has stopped working on the shard, because the shard's data must not be trusted."""
        return self.state in (ShardState.STOPPED, ShardState.CLOSED)

    def fail(self, reason: Unavailable) -> None:
        """Stop working on the shard for good, after `run` has raised an error. Waiting callers get `reason`."""
        self._step(ShardEvent.FAILED)
        self.progress.fail(reason)

    # --- roles ----------------------------------------------------------------------------------------------------

    async def run(self, node: ShardHost, cycle_limits: CycleLimits, linger_s: float) -> None:
        """Be standby or master until `stop`. Raises Fatal, and the errors of a failing disk or a lost bus."""
        self._buffer = self._bus.ahead.subscribe(BUFFER, self.number)
        self._ledger = self._bus.subscribe(LEDGER, self.number)
        self._start_workers(node)
        loop, failures = asyncio.get_running_loop(), 0
        try:
            if self.replica.entry.number < 0:
                await self._rebuild(node)  # faster than following the logs
            while not self._stopping:
                began, self.pulse = loop.time(), monotonic()
                try:
                    if self._recovery.is_set():
                        await self._recover(node)
                    elif not self._should_lead(node):
                        await self._stand_by(node)
                    elif node.election.is_paused():
                        # This node does not know whether another node leads now.
                        await node.election.wait_for_change(_STANDBY_S)
                    else:
                        await self._lead(node, cycle_limits, linger_s)
                    failures = 0
                except Behind as error:
                    await self._catch_up(node, error)
                except DamagedFile as error:
                    log.error("shard %d: %s", self.number, error, extra={"action": "damaged", "shard": self.number})
                    node.on_unfit(self.number, str(error))
                    # The same file is damaged again after a rebuild: the peer's file is damaged, too.
                    damage, self._damage = self._damage, (error.path, loop.time())
                    again = damage is not None and damage[0] == error.path and loop.time() - damage[1] < _AGAIN_S
                    if again or not await self._rebuild(node, damaged=True):
                        raise
                except (Fenced, Unavailable, UnknownTopic) as error:
                    if error.scope > FailureScope.SHARD:
                        raise
                    log.warning(
                        "shard %d starts again from the ledger: %s", self.number, error,
                        extra={"action": "restart", "shard": self.number},
                    )  # fmt: skip
                    if isinstance(error, WriteRefused):
                        node.topic_states.refuse(error.topic, error.reason, node.clock(), cycle_limits.retry_ms)
                    if loop.time() - began > _WELL_S:
                        failures = 0
                    await asyncio.sleep(_BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)])
                    failures += 1
        finally:
            await self._stop_workers()
            self._buffer.close()
            self._ledger.close()

    def _start_workers(self, node: ShardHost) -> None:
        self._tiering_worker = TieringWorker(
            self.number, self.replica, self._flushing, node.delay_files,
            lambda: max(node.clock(), self.replica.ledger_time), node.tiering_turn, counts=self.tiering_counts,
        )  # fmt: skip
        self._importer = FileImporter(
            self.number, self.replica, node.importing, node.clock, node.import_turn, _TAKE_IN,
            node.peers, self.tiering_counts,
        )  # fmt: skip
        self.store.index.switch(node.indexed_topics, self.replica.entry)
        self._tiering_task = asyncio.create_task(self._tiering_worker.run(), name=f"tiering-{self.number}")
        self._workers = [
            self._tiering_task,
            asyncio.create_task(self._importer.run(), name=f"import-{self.number}"),
            asyncio.create_task(IndexWorker(self.number, self.replica).run(), name=f"index-{self.number}"),
            asyncio.create_task(TopicCounter(self.number, self.replica).run(), name=f"count-{self.number}"),
        ]
        for task in self._workers:
            task.add_done_callback(self._on_worker_end)

    async def _stop_workers(self) -> None:
        for task in self._workers:
            task.cancel()
        await asyncio.wait(self._workers)

    def _on_worker_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._failure = task.exception()
            self.wake()

    def lose(self, store: ShardStore, error: DamagedFile) -> None:
        """Record that a delay file of this store is damaged: the shard needs a peer's replica to continue."""
        if store is self.store and self._failure is None:
            self._failure = error
            self.wake()

    @property
    def _tiers(self) -> Tiers:
        assert self._importer is not None
        return Tiers(self._wait_for_load, self._importer)

    async def _wait_for_load(self) -> None:
        waiting = asyncio.create_task(self._tiering_worker.wait_for_load(), name=f"loaded-{self.number}")
        try:
            await asyncio.wait([waiting, self._tiering_task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._tiering_task.done():
            self._tiering_task.result()

    def waits(self) -> str | None:
        """The imported file that a follower waits for, and why this node does not have it; None if it waits for
        none."""
        return None if self.leading or self._importer is None else self._importer.why_waiting()

    def seeks_file(self) -> bool:
        """Whether the shard waits for a file that it may soon get from the file's source or from a peer."""
        return self._importer is not None and self._importer.seeks_file()

    async def _pause(self, seconds: float) -> None:
        """Wait for this many seconds, or until the shard is stopped or must be recovered."""
        assert self._ledger is not None
        deadline = asyncio.get_running_loop().time() + seconds
        while not self._stopping and not self._recovery.is_set():
            self.pulse = monotonic()
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            await self._ledger.wait(min(left, _STANDBY_S))

    async def _unless(self, work: Coroutine[Any, Any, int], over: Callable[[], bool]) -> int | None:
        """The result of the work; None if `over`, which is checked regularly, becomes true first.

        Needed because following may wait for a file until some replica has it.
        """
        task = asyncio.create_task(work, name=f"follow-{self.number}")
        try:
            while not over():
                self.pulse = monotonic()
                done, _ = await asyncio.wait([task], timeout=_STANDBY_S)
                if done:
                    return task.result()
            return None
        finally:
            task.cancel()
            await asyncio.wait([task])

    def recover(self) -> None:
        """Make this replica the truth on an operator's order, because no other one can be: see `_recover`."""
        self._recovery.set()
        self.wake()

    def trouble(self) -> str | None:
        """The current problem with the shard's files; the failed work is being retried. None if there is no problem."""
        return None if self._importer is None else self._tiering_worker.trouble or self._importer.trouble

    def why_pending(self, offset: int) -> str:
        """Why the file of an import command is still pending."""
        return "" if self._importer is None else self._importer.why_pending(offset)

    def copy(self, offset: int) -> tuple[Path, FileCopy] | None:
        """This replica's copy of the file of an import command; None if it has no copy."""
        return None if self._importer is None else self._importer.copy(offset)

    def stop(self) -> None:
        """Finish the running cycle, and start no other."""
        self._stopping = True
        self.wake()

    def wake(self) -> None:
        """Wake `run`, so that it checks at once whether the election's result has changed."""
        for subscription in (self._buffer, self._ledger):
            if subscription is not None:
                subscription.wake()

    def _should_lead(self, node: ShardHost) -> bool:
        if self._failure is not None:
            raise self._failure
        return not self._stopping and self.number in node.election.owned_shards() and node.may_lead()

    async def _lead(self, node: ShardHost, cycle_limits: CycleLimits, linger_s: float) -> None:
        replica, given = self.replica, monotonic()
        assert self._buffer is not None
        if not replica.has_followed:  # detect another cluster's records before writing anything
            following = replica.follow_to_end(self._bus, self._tiers, self.progress.publish)
            if await self._unless(following, lambda: not self._should_lead(node)) is None:
                return
        # Fence first, then append a barrier, then read the ledger up to the barrier: no new entry can precede it.
        committer = await self._bus.committer(committer_name(self.number), replica.written.names)
        linger = Linger(node.thread_share, linger_s)
        self._step(ShardEvent.GIVEN)
        try:
            barrier = await append_barrier(replica, committer, node.clock())
            entry_count = await self._unless(
                replica.follow_to_barrier(self._bus, barrier, self._tiers, self.progress.publish),
                lambda: not self._should_lead(node),
            )
            if entry_count is None:
                return
            self._on_current(node)
            master = Master(replica, self._bus, committer, node, cycle_limits, self.progress, self._importer)
            self._step(ShardEvent.CURRENT)
            node.observer.take_over.observe(monotonic() - given)
            log.info(
                "shard %d is master at entry %d after following %d entries, %d messages pending",
                self.number, replica.entry.number, entry_count, replica.entry.pending,
                extra={"action": "master", "shard": self.number},
            )  # fmt: skip
            while self._should_lead(node):
                self.pulse = started = monotonic()  # not the loop's clock, which may count whole ms
                if node.election.is_paused():
                    await node.election.wait_for_change(_STANDBY_S)
                    continue
                if self._ledger_emptied:
                    await master.renew_last_entry()
                    self._ledger_emptied = False
                pause = await master.tick()
                next_start = linger.next_start(started, monotonic(), master.work, master.full)
                if pause > 0:
                    await self._buffer.wait(pause)
                await asyncio.sleep(max(next_start.for_waiters - monotonic(), 0))
                if not master.answered and (rest := next_start.for_all - monotonic()) > 0:
                    await self.progress.wait_for_waiter(rest)
            if not node.election.is_paused():
                await master.renew_last_entry()
        finally:
            self._step(ShardEvent.LOST)
            linger.close()
            if self._importer is not None:
                self._importer.follow()
            await committer.close()
            await node.election.release(self.number)
        log.info("shard %d was handed over", self.number, extra={"action": "hand over", "shard": self.number})

    async def _recover(self, node: ShardHost) -> None:
        """See `rebase`."""
        committer = await self._bus.committer(committer_name(self.number), self.replica.written.names)
        self._step(ShardEvent.ASKED_TO_REBASE)
        try:
            await rebase(self.replica, self._bus, committer, node.clock())
            self._recovery.clear()
        finally:
            self._step(ShardEvent.REBASED)
            await committer.close()

    async def _stand_by(self, node: ShardHost) -> None:
        """Follow the ledger until the election gives this shard to this node."""
        assert self._ledger is not None
        replica = self.replica
        await node.election.release(self.number)  # in case it was given and taken away while no role was running
        following = replica.follow_to_end(self._bus, self._tiers, self.progress.publish)
        if await self._unless(following, self._recovery.is_set) is None:
            return
        self._on_current(node)
        while not self._should_lead(node) and not self._stopping and not self._recovery.is_set():
            # The shard may have been given to this node and taken away again since the last check.
            await node.election.release(self.number)
            following = replica.follow(self._bus, self._tiers, self.progress.publish)
            if await self._unless(following, self._recovery.is_set) is None:
                return
            # Keep the wheel as far expanded as a master would, so that a takeover is quick.
            more = replica.expand(node.clock())
            if not self._should_lead(node):
                await self._ledger.wait(0 if more else _STANDBY_S)
                await asyncio.sleep(0)

    def _on_current(self, node: ShardHost) -> None:
        self.behind, self._copies, self._no_copy = 0, 0, ""
        self.progress.publish(self.replica.entry)
        node.on_ready(self.number)

    async def _catch_up(self, node: ShardHost, error: Behind) -> None:
        """Copy a peer's replica, after a pause that grows with each attempt since the replica was last current."""
        is_foreign = isinstance(error, ForeignLog)
        node.on_unfit(
            self.number, str(error) if is_foreign else f"{error}; {self._no_copy or 'it waits for a peer to copy'}"
        )
        if self.behind == 0:
            action, level = ("foreign", logging.CRITICAL) if is_foreign else ("behind", logging.WARNING)
            log.log(level, "%s", error, extra={"action": action, "shard": self.number})
        else:
            pauses = _BEHIND_S[: self.behind][-1:] + _COPIED_S[: self._copies][-1:]
            await self._pause(max(pauses))
        self.behind += 1
        self._copies += await self._rebuild(node)

    async def _rebuild(self, node: ShardHost, *, damaged: bool = False) -> bool:
        """Replace this replica by a peer's that is further ahead. False if no peer has one, or if this disk has no
        space for it.

        A `damaged` replica is replaced by any peer's replica from which the ledger can still be followed.
        """
        if not node.has_peer(self.number):
            return False
        own, why = self.store.position.ledger_offset, self._no_copy
        await self._stop_workers()
        async with self._flushing:
            self._step(ShardEvent.OUTDATED)
            self.store.close()
            try:
                start = await self._bus.start_offset(LEDGER, self.number)
                copied = await node.rebuild(self.number, self._path, start if damaged else max(start, own + 1))
                self._no_copy = ""
                return copied
            except (DiskFull, StoreFailed) as error:  # only the copy failed: other shards continue
                self._no_copy = f"it cannot be copied: {error}"
                if not why:
                    log.error("shard %d: %s", self.number, self._no_copy, extra={"action": "rebuild"})
                return False
            finally:
                finish_replacement(self._path)  # in case the disk failed between two renames
                self._open()
                self._failure = None
                self._start_workers(node)
                self._step(ShardEvent.REOPENED)

    # --- housekeeping ---------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Make the store durable, and trim logs that belong to this node alone up to the store's position."""
        async with self._flushing:
            position = self.store.position
            await in_thread(self.store.flush)
            if self._trims:
                await self._bus.trim(BUFFER, self.number, position.entry.applied)
                # The last entry is not trimmed, so that `duemq verify` can compare the store with the ledger.
                await self._bus.trim(LEDGER, self.number, max(position.ledger_offset - 1, 0))

    async def trim_ledger(self, before: int) -> None:
        """As the shard's master in a shared log, drop entries from before this time (ms).

        The last entry is not dropped, whatever its age: replicas need it to check that they are current.
        """
        if self._trims or not self.leading:
            return
        last = self.store.position.ledger_offset - 1
        if await self._bus.start_offset(LEDGER, self.number) > last:
            self._ledger_emptied = True
            self.wake()
            return
        start = min(await self._bus.first_since(LEDGER, self.number, before), last)
        if start > self._ledger_start:
            await self._bus.trim(LEDGER, self.number, start)
            self._ledger_start = start

    @property
    def _horizons(self) -> tuple[int, int]:
        entry = self.replica.entry
        return entry.horizon, entry.end_horizon

    @property
    def to_purge(self) -> bool:
        """Whether there is forgotten history that has not been dropped yet."""
        return not self.rebuilding and self._horizons != self._purged_horizons

    async def clean(self, failpoint: Failpoint = no_failpoint) -> bool:
        """Drop history below the ledger's horizons, and free its space. False if there was none.

        Also removes an unfinished copy once the replica has caught up through the logs.
        """
        if self.rebuilding:
            return False
        if not self.behind:
            async with self._flushing:
                await in_thread(PartialReplica(self._path).discard)
        store, horizons = self.store, self._horizons
        horizon, end_horizon = horizons
        if horizons == self._purged_horizons and not has_history(store, horizon) and not has_ends(store, end_horizon):
            return False
        for _ in purge_before(store, horizon, end_horizon, failpoint):
            await asyncio.sleep(0)
            if self.rebuilding or self.store is not store:
                return False  # the store was replaced by a peer's replica, which has its own history
        failpoint("dropped")
        await in_thread(store.compact, ROW, ROW + first_key_at(horizon))
        failpoint("compacted")
        if self.store is store:
            self._purged_horizons = horizons
        return True

    def gauges(self, lag: int = 0, *, stopped: bool = False, stuck: bool = False) -> ShardGauges:
        """The shard's gauges. `lag`: ledger entries not followed yet, as measured by the node. `stopped`: the node
        stopped the shard, because its data is wrong."""
        entry, wheel = self.replica.entry, self.replica.wheel
        return ShardGauges(
            self.number, self.leading, lag, entry.pending, wheel.next_due(), entry.applied, wheel.all_totals(),
            self.store.delay_files.messages, len(self.store.delay_files.names()), self.tiering_counts, stopped, stuck,
        )  # fmt: skip

    @property
    def at_rest(self) -> asyncio.Lock:
        """A lock that blocks flushes, seals and loads, and so the trimming of logs. Cycles continue."""
        return self._flushing

    async def checkpoint(self, into: Path) -> None:
        """Make a copy of the store for a peer, from hard links to its files."""
        async with self._flushing:
            store = self.store
            try:
                await in_thread(make_checkpoint, store, into)
            except DamagedFile as error:
                self.lose(store, error)
                raise Unavailable(f"shard {self.number} cannot be copied: {error}") from error

    async def close(self) -> None:
        async with self._flushing:
            self.store.close()
