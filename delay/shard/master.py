"""The master of a shard: each tick does all due work and returns the pause until the next tick."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import thread_time
from typing import Protocol

from duemq.bus.base import Bus, Committer
from duemq.cluster.shards.progress import Progress
from duemq.cluster.topics.internal_topics import BUFFER, LEDGER
from duemq.cluster.topics.topic_states import TopicStates
from duemq.delay.core.cycle import Cycle
from duemq.delay.core.limits import CycleLimits
from duemq.delay.core.linger import CycleWork
from duemq.delay.imports.file_importer import FileImporter
from duemq.delay.metrics import Observer
from duemq.delay.replica.prefetch import read_for
from duemq.delay.replica.replica import Replica
from duemq.delay.replica.retention import has_ends, horizon_for, latest_ends
from duemq.delay.shard.dispatch import Dispatch
from duemq.model.errors import LogFailed
from duemq.model.messages.key import due_of, first_key_at
from duemq.model.messages.record import Partition, StoredRecord, pack_record
from duemq.model.timing import window_of
from duemq.storage.keyspace import ENDED

log = logging.getLogger(__name__)

_IDLE_S = 0.5  # the longest pause: slots of the wheel are expanded seconds before their time
_LOAD_S = 0.05  # between checks whether a due window is loaded
_MORE = 0.0  # no pause: there is more work
_LOOKS = 30  # reads before the ledger counts as unreadable, one second apart
_TIMED = 4  # one cycle in this many measures its CPU time, because reading that clock is a system call


class MasterContext(Protocol):
    """What the shards of a node share. `clock` returns epoch ms."""

    @property
    def topic_states(self) -> TopicStates: ...
    @property
    def observer(self) -> Observer: ...
    @property
    def clock(self) -> Callable[[], int]: ...
    def short_of_space(self, shard: int) -> bool:
        """Whether a disk with a replica of the shard is so full that history must be kept as short as possible."""
        ...


class Master:
    """Runs the cycles of one shard, one at a time."""

    def __init__(
        self,
        replica: Replica,
        bus: Bus,
        committer: Committer,
        context: MasterContext,
        cycle_limits: CycleLimits,
        progress: Progress,
        files: FileImporter | None = None,
    ) -> None:
        """`files`: the source of files to import; with None, nothing is imported."""
        self.replica, self.bus, self.committer, self._cycle_limits, self._progress = (
            replica,
            bus,
            committer,
            cycle_limits,
            progress,
        )
        self._observer, self._clock, self._short_of_space = context.observer, context.clock, context.short_of_space
        self._dispatch = Dispatch(context.topic_states, cycle_limits, replica.shard)
        self.shard = replica.shard
        self._files = files
        if files is not None:
            files.lead()
        self._ledger: Partition = (LEDGER, self.shard)
        self._first = True  # no cycle has run yet
        self._most_commands = cycle_limits.max_commands  # the most commands to read for the next cycle
        self.work: CycleWork | None = None
        """The work of the last cycle; None if it had nothing to do."""
        self.full = False
        """Whether the last cycle reached its bounds, so that there is a backlog."""
        self.answered = False
        """Whether the last cycle answered commands, so that more requests probably wait for answers. In a cluster the
        master cannot see these, because they wait at the proxies."""
        # Times (ms) of the first end (if known) and of the last end that have not been forgotten.
        self._oldest = self._newest = replica.entry.at if replica.entry.number >= 0 else -1

    async def tick(self) -> float:
        """Do all due work in one cycle. Returns the seconds until the next cycle is needed, 0 for at once.

        Raises Fenced if another master took over, Fatal if wheel and store differ, and StoreFailed if it is unknown
        whether the commit succeeded. Discard this object after any of these errors.
        """
        replica, cycle_limits = self.replica, self._cycle_limits
        is_timed = replica.entry.number % _TIMED == _TIMED - 1
        cpu_clock: Callable[[], float] = thread_time if is_timed else float  # `float()` returns 0.0
        self.work, worked = None, cpu_clock()
        now = self._clock()
        reach = replica.reach(now)
        expanding = replica.expand(reach)
        commands = await self.bus.ahead.read(
            BUFFER, self.shard, replica.entry.applied, self._most_commands, cycle_limits.max_bytes
        )
        cycle = replica.cycle()
        await self._notice_loss(cycle, commands)
        batch, view = await read_for(cycle.read(commands), replica.store, whole=False)
        cycle.apply(batch, view=view)
        del view  # frees the old rows
        keys, rows, complete = replica.due(reach, cycle_limits.max_messages, cycle_limits.max_bytes)
        cycle.take(reach, keys, rows, complete)
        if self._files is not None:
            cycle.decide_files(self._files.decide(now))
        cut_off = len(batch.commands) < len(commands)
        # Leftover commands are read again, so do not read more of them than the next cycle can apply.
        self._most_commands = min(
            2 * len(batch.commands) if cut_off else 2 * self._most_commands, cycle_limits.max_commands
        )
        self.full = not complete or cut_off or 2 * len(commands) >= cycle_limits.max_commands
        idle = cycle.idle
        horizons = self._horizons(cycle, now, reach if complete else 0)
        if idle and horizons == (cycle.before.horizon, cycle.before.end_horizon):
            return _MORE if expanding else self._pause(now)
        self.answered = bool(cycle.answers)
        outbox = await self._dispatch.outbox(cycle, now)
        batches: dict[Partition, list[bytes]] = {where: frames for where, frames in outbox.batches.items() if frames}
        entry = cycle.entry(now, *horizons, {topic for topic, _ in batches})
        batches[self._ledger] = [pack_record(None, (), entry.encode())]
        cpu_s = cpu_clock() - worked  # excludes the wait for the log, because other tasks run on this thread during it
        appends = await self.committer.commit(batches)
        worked, begins = cpu_clock(), replica.read_to
        ledger_offset = appends[self._ledger].first_offset
        # Committed. No await from here to the end, so that no task sees the log without the commit's effect on the
        # store.
        replica.advance(cycle, entry, ledger_offset + 1, self._files)
        self._newest = self._newest if idle else now
        if self._oldest < entry.horizon:
            self._oldest = self._newest
        self._progress.publish(entry)
        self._observer.cycle(self.shard, entry, outbox, commands=len(batch.commands), started=now, ended=self._clock())
        if not begins <= ledger_offset <= begins + self.bus.marker_offsets:
            await self._refuse_others(begins, ledger_offset)
        cpu_s += cpu_clock() - worked
        self.work = CycleWork(len(batch.commands) + len(cycle.due), cpu_s if is_timed else None)
        # A read may return fewer commands than exist, because of the limit of bytes or because of the bus.
        if expanding or not complete or cycle.applied < self.bus.ahead.reach(BUFFER, self.shard):
            return _MORE
        return self._pause(self._clock())

    async def _refuse_others(self, start: int, own: int) -> None:
        """Check that the ledger has no record between this master's last two entries: from offset `start` to below
        `own`.

        Raises ForeignLog for any such record: a master of the same cluster would be fenced or would fence this one, so
        another cluster wrote it. Raises LogFailed if the ledger cannot be read that far. Offsets without a record are
        allowed.
        """
        replica, subscription = self.replica, self.bus.subscribe(*self._ledger)
        try:
            for _ in range(_LOOKS):
                records = await self.bus.read(*self._ledger, start, 1)
                if own < start or (records and records[0].offset < own):
                    raise replica.foreign(min(start, own), "a record of another writer is next to its last entry")
                if records:
                    return
                await subscription.wait(1.0)
        finally:
            subscription.close()
        raise LogFailed(f"shard {self.shard}: its ledger cannot be read from offset {start} to {own}")

    async def renew_last_entry(self) -> None:
        """Commit an empty cycle if the last entry in the ledger was deleted. Raises the errors of `tick`.

        A successor needs that entry to prove that it is current.
        """
        replica = self.replica
        read_to = replica.store.position.ledger_offset
        if replica.entry.number < 0 or await self.bus.start_offset(*self._ledger) < read_to:
            return
        cycle, now = replica.cycle(), self._clock()
        cycle.take(0, [], [], complete=True)
        entry = cycle.entry(now, cycle.before.horizon, cycle.before.end_horizon)
        appends = await self.committer.commit({self._ledger: [pack_record(None, (), entry.encode())]})
        replica.advance(cycle, entry, appends[self._ledger].first_offset + 1)
        self._progress.publish(entry)
        log.warning(
            "shard %d: the last entry of its ledger was deleted; entry %d takes its place",
            self.shard, entry.number, extra={"action": "ledger", "shard": self.shard},
        )  # fmt: skip

    async def _notice_loss(self, cycle: Cycle, commands: Sequence[StoredRecord]) -> None:
        """Skip commands that the log dropped unread, and log a critical error: they cannot be restored."""
        applied = cycle.applied
        if not self._first and not (commands and commands[0].offset > applied):
            return
        self._first = False
        # A gap alone proves no loss: it may also be the end of another producer's transaction.
        start = await self.bus.start_offset(BUFFER, self.shard)
        if start > applied:
            cycle.lose(start)
            self._observer.count_loss(self.shard, start - applied)
            log.critical(
                "shard %d: the log dropped up to %d accepted commands (offsets %d to %d) before any node read them: "
                "they are lost. Have the log keep commands for longer than nodes may be away (kafka.retention).",
                self.shard, start - applied, applied, start - 1, extra={"action": "lost", "shard": self.shard},
            )  # fmt: skip

    def _horizons(self, cycle: Cycle, now: int, reached: int) -> tuple[int, int]:
        """`horizon` and `end_horizon` for the next entry.

        The ledger decides which messages are forgotten, so that all replicas give the same answers, even if some have
        not dropped them yet. `reached`: messages due up to this ms are not pending after the cycle. The horizon never
        passes the cursor, so that only ended messages are forgotten. If the cursor has not moved for long, it is
        advanced so that history can be forgotten.
        """
        cycle_limits, before, store = self._cycle_limits, cycle.before, self.replica.store
        if cycle_limits.retention_ms is None:
            return before.horizon, before.end_horizon
        short = self._short_of_space(self.shard)
        cutoff = now - (
            min(cycle_limits.retention_ms, cycle_limits.min_retention_ms) if short else cycle_limits.retention_ms
        )
        window = window_of(max(cutoff, 0))
        horizon, end_horizon = before.horizon, before.end_horizon
        if window > end_horizon and (not cycle.idle or has_ends(store, window)):
            end_horizon = window
        if window > horizon:
            last_ends = store.last_ends | latest_ends(store.last_ends, cycle.windows_of_ends(now), now)
            # Move the cursor only if there is history to forget (the last line). A message cancelled early counts as
            # ended in the window of its due time.
            if (
                window <= reached
                and due_of(cycle.cursor) < window
                and (horizon <= self._oldest < window or store.holds(ENDED, horizon, window))
            ):
                cycle.rest_at(first_key_at(window))
            horizon = max(horizon, horizon_for(cycle.cursor, cutoff, last_ends))
        return horizon, end_horizon

    def _pause(self, now: int) -> float:
        if self.replica.reach(now) < now:
            return _LOAD_S
        due = self.replica.wheel.next_due()
        return _IDLE_S if due is None else min(max(due - now, 0) / 1000, _IDLE_S)
