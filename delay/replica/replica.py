"""One replica of a shard: its store, its wheel, and how it follows the ledger.

A follower never decides: it applies the commands of a ledger entry with the answers in that entry, and compares the
resulting count and checksum with those in the entry. A restart after a crash works the same way: the store is at some
earlier entry, and follows the log from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from duemq.bus.base import Bus, Subscription
from duemq.cluster.topics.internal_topics import BUFFER, LEDGER
from duemq.delay.core.cycle import Cycle
from duemq.delay.replica.prefetch import read_for
from duemq.delay.replica.retention import latest_ends
from duemq.delay.replica.store_changes import count_changes, store_changes
from duemq.delay.replica.written_topics import WrittenTopics
from duemq.model.errors import Behind, CorruptStore, Diverged, ForeignLog, LogFailed
from duemq.model.log.ledger import Barrier, Entry, FileDecision, read_ledger
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import HIGHEST, due_of, first_key_at, last_key_at
from duemq.model.messages.record import StoredRecord, unpack_record
from duemq.model.messages.row import topic_of, without_payload
from duemq.model.timing import window_of
from duemq.storage.delay_files.catalog import CatalogFile
from duemq.storage.keyspace import LedgerPosition
from duemq.storage.shard.records import LocalFile
from duemq.storage.shard.store import KeyScan, ShardStore
from duemq.wheel.expansion import Expansion
from duemq.wheel.wheel import Wheel

log = logging.getLogger(__name__)

_PART = 2_000  # keys read at once while a slot is expanded ahead of time, which takes about a millisecond
_READ = 5_000
_LOOK_AGAIN_S = 1.0
_LOOKS = 30  # attempts without a new record: by then, a former leader was detected and the true leader was asked


class ImportedFiles(Protocol):
    """See `delay/imports/file_importer.py`."""

    async def have(self, decision: FileDecision) -> None: ...
    def local_file(self, offset: int) -> LocalFile: ...
    def forget(self, decisions: Sequence[FileDecision]) -> None: ...


class Tiers(NamedTuple):
    """What a follower may have to wait for.

    `wait_for_load` returns once one more window is loaded from its delay files.
    """

    wait_for_load: Callable[[], Awaitable[None]]
    files: ImportedFiles


class Replica:
    """The state of one shard on this node."""

    def __init__(self, shard: int, store: ShardStore, ids: IdCodec, shards: int = 1, cluster: str = "") -> None:
        """`shards`: the cluster's number of shards. `cluster`: the cluster's id; if it is empty, nothing is compared
        with it."""
        self.shard, self.store, self.ids, self.shards, self.cluster = shard, store, ids, shards, cluster
        self.wheel = Wheel.restore(store.windows())
        if self.wheel.total != self.entry.pending:
            raise CorruptStore(
                f"shard {shard}: its windows count {self.wheel.total} pending messages, its ledger entry "
                f"{self.entry.number} says {self.entry.pending}. Run `duemq verify`."
            )
        self.read_to = store.position.ledger_offset
        """Records in the ledger below this offset have been read."""
        self.written = WrittenTopics(self.entry)
        self.has_followed = False
        """Whether this process has read the ledger up to the end offset that a broker reported."""
        self._ahead: tuple[Expansion, KeyScan] | None = None
        self.ledger_time = self.entry.at
        """The ledger's time, epoch ms: the time of the last entry, or of the entry that is being followed.

        With it a replica can pass a sealed window, whatever time its machine's clock shows.
        """

    @property
    def entry(self) -> Entry:
        """The last ledger entry that this replica has applied."""
        return self.store.position.entry

    def cycle(self) -> Cycle:
        """The next cycle, still empty."""
        return Cycle(self.entry, self.store, self.ids, self.shard, self.shards)

    def advance(
        self, cycle: Cycle, entry: Entry, ledger_offset: int, imported_files: ImportedFiles | None = None
    ) -> None:
        """Advance the local state after a committed cycle: store and wheel in one step, with no await in between.

        `imported_files`: the local files that belong to an entry with imports.
        """
        last_ends = latest_ends(self.store.last_ends, cycle.windows_of_ends(entry.at), entry.at)
        rowless = self._rowless_endings(cycle)
        puts, deletes = store_changes(cycle, entry, last_ends)
        count_changes(cycle, entry, self.wheel)
        imports = self.store.imports.changes(cycle.import_commands, entry.imported, entry.at)
        files = self._count_imports(entry, imported_files)
        puts += [*imports.puts, *((file.row, file.about.encode()) for file in files)]
        deletes += imports.deletes
        if self.store.index:
            imported = [decision.offset for decision in entry.imported if not decision.reason]
            puts += self.store.index.add(cycle.placed_rows(), entry.at, imported)
        windows = self.wheel.window_totals(self.wheel.take_touched_windows())
        self.store.write(
            puts,
            deletes,
            LedgerPosition(entry, ledger_offset),
            windows,
            rowless,
            self._topic_changes(cycle, entry, imported_files),
        )
        self.read_to = ledger_offset
        self.written.record(entry)
        self.store.last_ends.update(last_ends)
        self.store.imports.record(imports)
        for file in files:
            self.store.delay_files.add(file)
        if entry.imported and imported_files is not None:
            imported_files.forget(entry.imported)

    def _rowless_endings(self, cycle: Cycle) -> list[bytes]:
        """The keys of messages that the cycle cancelled in delay files without reading their rows.

        If a message's window has been loaded since, the store has its row: then the row is added to the ending.
        """
        keys = [key for key, ended in cycle.endings.items() if ended is not None and not ended.row]
        if not keys:
            return keys
        for key, row in self.store.near_rows(keys):
            if (ended := cycle.endings[key]) is not None:
                cycle.endings[key] = ended._replace(row=without_payload(row))
                cycle.removed[key] = topic_of(row)
        return [key for key in keys if (ended := cycle.endings[key]) is not None and not ended.row]

    def _topic_changes(
        self, cycle: Cycle, entry: Entry, imported_files: ImportedFiles | None
    ) -> Mapping[bytes, int] | None:
        """The changes of the counts by topic; None if the store must count again from the start."""
        through = self.store.topic_counts.through
        changes = cycle.topic_changes(through)
        for decision in entry.imported:
            if not decision.reason:
                assert imported_files is not None
                local_file = imported_files.local_file(decision.offset)
                if first_key_at(local_file.about.window) > through:
                    continue  # this window is not counted yet
                if through < HIGHEST or local_file.topics is None:
                    return None
                changes.update({topic.encode(): count for topic, count in local_file.topics.items()})
        return changes

    def _count_imports(self, entry: Entry, imported_files: ImportedFiles | None) -> list[CatalogFile]:
        """Count the messages in an entry's imported files in the wheel. Returns these files."""
        files: list[CatalogFile] = []
        for decision in entry.imported:
            if not decision.reason:
                assert imported_files is not None
                local_file = imported_files.local_file(decision.offset)
                if not self.wheel.add_window(local_file.about.window, decision.rows):
                    from duemq.storage.delay_files.imported_file import dues  # pyarrow: see about.py

                    for part in dues(local_file.path):
                        self.wheel.add(part)
                files.append(CatalogFile(local_file.about))
        return files

    # --- following ------------------------------------------------------------------------------------------------

    async def follow(self, bus: Bus, tiers: Tiers | None = None, tell: Callable[[Entry], None] | None = None) -> int:
        """Follow the ledger to the last entry that can be read now. Returns the number of entries.

        `tiers`: needed to pass a sealed window or an import. `tell` is called with each entry once the replica has
        applied it. Raises Behind, Diverged or another Fatal.
        """
        entry_count = 0
        while True:
            records = await bus.read(LEDGER, self.shard, self.read_to, 500)
            if not records:
                return entry_count
            for offset, _, frame in records:
                entry = read_ledger(unpack_record(frame).payload)
                if isinstance(entry, Barrier):
                    if self.cluster and entry.cluster not in ("", self.cluster):
                        raise self.foreign(offset, f"a master of cluster {entry.cluster} began")
                    self.read_to = offset + 1
                    continue
                await self._follow_entry(bus, entry, offset, tiers)
                entry_count += 1
                if tell is not None:
                    tell(entry)
            await asyncio.sleep(0)

    async def follow_to_end(self, bus: Bus, tiers: Tiers, tell: Callable[[Entry], None] | None = None) -> int:
        """Follow the ledger to its apparent current end, however long its records take to become readable.

        A former leader may report an end offset that is too low. That is good enough for a standby, not for a master.
        """
        entry_count = await self._follow_until(bus, await bus.end_offset(LEDGER, self.shard), tiers, tell)
        applied = self.entry.applied
        if await bus.end_offset(BUFFER, self.shard) < applied and await bus.sure_end(BUFFER, self.shard) < applied:
            raise ForeignLog(
                f"shard {self.shard}: the commands before offset {applied} are applied here, and {BUFFER} ends before "
                "that: it is not the same topic any more"
            )
        self.has_followed = True
        return entry_count

    async def follow_to_barrier(
        self, bus: Bus, barrier: int, tiers: Tiers, tell: Callable[[Entry], None] | None = None
    ) -> int:
        """Follow the ledger until the barrier at this offset is read: then this replica is current.

        Raises LogFailed if the answering broker is not the leader that appended the barrier, and no other broker is
        found for long.
        """
        entry_count = 0
        while self.read_to <= barrier:
            entry_count += await self._follow_until(bus, barrier + 1, tiers, tell)
        return entry_count

    async def _follow_until(self, bus: Bus, end: int, tiers: Tiers, tell: Callable[[Entry], None] | None) -> int:
        entry_count = looks = 0
        subscription = bus.subscribe(LEDGER, self.shard)
        try:
            while True:
                # `reach` is only known after a read, because a remote log fetches from the offset that is read.
                before = self.read_to
                entry_count += await self.follow(bus, tiers, tell)
                if self.read_to >= end:
                    break
                if bus.reach(LEDGER, self.shard) >= end:
                    entry_count += await self.follow(bus, tiers, tell)
                    break
                looks = looks + 1 if self.read_to == before else 0
                if looks > _LOOKS:
                    raise LogFailed(f"shard {self.shard}: its ledger cannot be read from offset {before} to {end}")
                await subscription.wait(_LOOK_AGAIN_S)
        finally:
            subscription.close()
        await self._refuse_gap(bus)
        return entry_count

    async def _refuse_gap(self, bus: Bus) -> None:
        """Raise Behind if entries that this replica never read may have been dropped.

        Entry numbers show a gap only if an entry follows it. But masters never trim the last entry of a ledger. So if
        the ledger begins after this replica's last entry, something else dropped the rest of the ledger.
        """
        if await bus.start_offset(LEDGER, self.shard) > self.store.position.ledger_offset:
            raise Behind(
                f"shard {self.shard}: the ledger begins after entry {self.entry.number}, the last one here: later ones "
                "may have been dropped before they were read"
            )
        if self.entry.number < 0 and await bus.start_offset(BUFFER, self.shard) > 0:
            raise Behind(
                f"shard {self.shard}: this replica is empty, and the log has dropped the first commands of the shard"
            )

    async def _follow_entry(self, bus: Bus, entry: Entry, ledger_offset: int, tiers: Tiers | None) -> None:
        before = self.entry
        if entry.base is not None:
            self._rebase(entry, ledger_offset)
            return
        if entry.number <= before.number:
            raise self.foreign(ledger_offset, f"entry {entry.number} comes after entry {before.number}")
        if entry.number != before.number + 1:
            raise Behind(
                f"shard {self.shard}: the ledger goes on at entry {entry.number}, this replica is at {before.number}: "
                "it stayed behind for longer than the log is kept"
            )
        self.ledger_time = max(self.ledger_time, entry.at, due_of(entry.cursor))
        cycle = self.cycle()
        if entry.lost is not None:
            cycle.lose(entry.lost[1])
        commands = cycle.read(await self._commands(bus, cycle.applied, entry.applied), entry.answers)
        commands, view = await read_for(commands, self.store, whole=True)
        cycle.apply(commands, entry.answers, view)
        while (first := self.store.delay_files.first) is not None and first_key_at(first) <= entry.cursor:
            assert tiers is not None
            await tiers.wait_for_load()
        for decision in entry.imported:
            if not decision.reason:
                assert tiers is not None
                await tiers.files.have(decision)
        count = before.pending + len(cycle.placed)
        keys, rows = self.store.scan(before.cursor, entry.cursor, count + 1, 1 << 62)
        cycle.follow(entry, keys, rows)
        own = cycle.entry(entry.at, entry.horizon, entry.end_horizon)
        if (own.pending, own.checksum, own.outcomes) != (entry.pending, entry.checksum, entry.outcomes):
            raise Diverged(
                f"shard {self.shard}: after ledger entry {entry.number} this replica holds {own.pending} messages, "
                f"checksum {own.checksum:016x}; the ledger says {entry.pending}, {entry.checksum:016x}"
            )
        self.advance(cycle, entry, ledger_offset + 1, None if tiers is None else tiers.files)

    def foreign(self, ledger_offset: int, what: str) -> ForeignLog:
        """The error if two clusters have written to the ledger. `what`: the evidence, at this offset. A retry reads the
        same record again, and so fails again."""
        self.read_to, self.has_followed = min(self.read_to, ledger_offset), False
        return ForeignLog(
            f"shard {self.shard}: two clusters have written to its ledger: {what}, at offset {ledger_offset}. Stop the "
            "other one; then see docs/operate/operations.md, Two clusters on the same topics."
        )

    def _rebase(self, entry: Entry, ledger_offset: int) -> None:
        """Continue from a replica that an operator made the truth. Raises Behind if this replica differs from it."""
        before = self.entry
        same = (entry.base, entry.applied, entry.cursor, entry.pending, entry.checksum, entry.outcomes)
        own = (before.number, before.applied, before.cursor, before.pending, before.checksum, before.outcomes)
        if same != own:
            raise Behind(
                f"shard {self.shard}: by an operator's order entry {entry.number} follows entry {entry.base}, and "
                f"this replica is at another entry {before.number}"
            )
        self.advance(self.cycle(), entry, ledger_offset + 1)

    async def _commands(self, bus: Bus, start: int, end: int) -> list[StoredRecord]:
        """All commands from `start` to below `end`. The last one exists, because an entry applies up to a command.

        Other offsets may be missing, because of transactions of other producers.
        """
        commands: list[StoredRecord] = []
        subscription: Subscription | None = None
        try:
            while start < end:
                part = await bus.read(BUFFER, self.shard, start, min(_READ, end - start))
                if not part and subscription is None:
                    subscription = bus.subscribe(BUFFER, self.shard)
                    continue  # read again: the subscription is not woken by records from before it
                if (not part or part[0].offset > start) and await bus.start_offset(BUFFER, self.shard) > start:
                    raise Behind(f"shard {self.shard}: command {start} is no longer in the log")
                if part:
                    commands += [command for command in part if command.offset < end]
                    start = part[-1].offset + 1
                elif subscription is not None:
                    await subscription.wait(_LOOK_AGAIN_S)
        finally:
            if subscription is not None:
                subscription.close()
        return commands

    # --- the wheel ------------------------------------------------------------------------------------------------

    def reach(self, now: int) -> int:
        """The time (ms) up to which messages can be delivered: now, or just before the first window that is not
        loaded."""
        first = self.store.delay_files.first
        return now if first is None else min(now, first - 1)

    def expand(self, now: int) -> bool:
        """Expand slots of the wheel whose time is near. True if there is more to do soon. Raises CountMismatch.

        Slots whose time has come are expanded as a whole, because they are needed now. Later ones are expanded one at a
        time, in small parts.
        """
        wheel = self.wheel
        if self._ahead is not None:
            self._read_ahead(whole=self._ahead[0].slot.start <= now)
        while (slot := wheel.expandable(now)) is not None:
            if self.store.delay_files.of(window_of(slot.start)):
                break  # it must be loaded first
            reached = slot.start <= now
            if self._ahead is not None and not reached:
                break
            after = max(self.entry.cursor, last_key_at(slot.start - 1))  # rows up to the cursor are not pending
            expansion, scan = wheel.begin(slot), self.store.scan_keys(after, slot.end)
            if reached:
                while not scan.done:
                    expansion.feed(scan.part(_PART))
                self._finish(expansion)
            else:
                self._ahead = expansion, scan
                self._read_ahead(whole=False)
        return self._ahead is not None

    def _read_ahead(self, whole: bool) -> None:
        assert self._ahead is not None
        expansion, scan = self._ahead
        while not scan.done:
            expansion.feed(scan.part(_PART))
            if not whole:
                break
        if scan.done:
            self._ahead = None
            self._finish(expansion)

    def _finish(self, expansion: Expansion) -> None:
        if expansion.fed_rows != expansion.expected:
            # Check with RocksDB first: a corrupt block is the likely cause, and RocksDB can name it.
            self.store.check(last_key_at(expansion.slot.start - 1), expansion.slot.end)
        expansion.finish()

    def due(self, now: int, max_count: int, max_bytes: int) -> tuple[list[bytes], list[bytes], bool]:
        """Keys and rows due by `now`, and whether these are all. Raises CorruptStore if wheel and store differ."""
        expected = self.wheel.due(now)
        if expected == 0:
            return [], [], True
        limit = min(expected, max_count)
        keys, rows = self.store.scan(self.entry.cursor, last_key_at(now), limit, max_bytes)
        complete = len(keys) == expected
        if len(keys) < limit and sum(map(len, rows)) < max_bytes:
            self.store.check(self.entry.cursor, now + 1)
            raise CorruptStore(
                f"shard {self.shard}: {expected} messages are counted as due by {now}, the store gave {len(keys)}. "
                "None of them were delivered. Run `duemq verify`; restore this folder from a backup or a peer."
            )
        return keys, rows, complete

    def recount(self) -> int:
        """Count the pending rows of the store, for verification. May take long."""
        count, after = 0, self.entry.cursor
        while keys := self.store.scan_all(after, HIGHEST, _READ, 64 << 20)[0]:
            count, after = count + len(keys), keys[-1]
        return count
