"""Mutants of the shard: each breaks one rule, and the random schedules of `test_shard_model.py` must find it out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from duemq.bus.memory import MemoryBus
from duemq.cluster.topics.internal_topics import BUFFER, LEDGER
from duemq.delay.core import command_batch as batch
from duemq.delay.core import cycle
from duemq.delay.core.command_batch import CommandBatch, Lookups, View
from duemq.delay.core.cycle import Cycle, Phase
from duemq.delay.core.outbox import Outbox
from duemq.delay.replica.replica import Replica, Tiers
from duemq.delay.shard.dispatch import Dispatch
from duemq.delay.shard.master import Master
from duemq.model.errors import DuemqError
from duemq.model.log.ledger import Answer, DeferredMessage, Entry
from duemq.model.messages import row, row_notes
from duemq.model.messages.ended import DEAD
from duemq.model.messages.key import due_of, last_key_at, make_key, offset_of
from duemq.model.messages.plain import ByName, RecordPosition, command_of
from duemq.model.messages.record import Partition
from duemq.model.messages.row import expires_of
from duemq.model.messages.row_notes import ChangeHistory, PastChange, earlier_step, with_change
from duemq.storage.rocksdb import Memory
from tests.support.shard.shard_schedule import Schedule

MEMORY = Memory(8 << 20, 8 << 20)
Patch = pytest.MonkeyPatch


def no_fence(patch: Patch) -> None:
    """The broker lets a replaced master commit."""

    async def commit(self: MemoryBus, batches: Mapping[Partition, Sequence[bytes]], name: str, epoch: int) -> Any:
        return await self.append(batches)

    patch.setattr(MemoryBus, "commit", commit)


def early_apply(patch: Patch) -> None:
    """A standby applies commands ahead of the ledger and decides for itself."""
    follow = Replica.follow

    async def follow_and_decide(self: Replica, bus: MemoryBus, tiers: Tiers) -> int:
        followed = await follow(self, bus, tiers)
        if self.entry.number < 0:
            return followed
        cycle = self.cycle()
        cycle.apply(cycle.read(await bus.read(BUFFER, self.shard, self.entry.applied, 3)))
        cycle.follow(replace(self.entry, imported=(), deferred=()), [], [])
        entry = replace(cycle.entry(self.entry.at), number=self.entry.number)
        self.advance(cycle, entry, self.store.position.ledger_offset)
        return followed

    patch.setattr(Replica, "follow", follow_and_decide)


def forget_late(patch: Patch) -> None:
    """Messages that arrive below the cursor do not go out."""
    take = Cycle.take

    def take_ahead(self: Cycle, now: int, keys: list[bytes], rows: list[bytes], complete: bool) -> None:
        take(self, now, keys, rows, complete)
        self.due = [due for due in self.due if due[0] > self.before.cursor]

    patch.setattr(Cycle, "take", take_ahead)


def skip_deferrals(patch: Patch) -> None:
    """A follower does not move what the master deferred."""
    follow = Cycle.follow

    def follow_cursor(self: Cycle, entry: Entry, keys: list[bytes], rows: list[bytes]) -> None:
        follow(self, replace(entry, deferred=()), keys, rows)

    patch.setattr(Cycle, "follow", follow_cursor)


def cursor_past_undelivered(patch: Patch) -> None:
    """A bounded cycle moves the cursor to now, over rows that it did not read."""
    take = Cycle.take

    def take_all(self: Cycle, now: int, keys: list[bytes], rows: list[bytes], complete: bool) -> None:
        take(self, now, keys, rows, complete)
        if not complete:
            self.cursor = max(self.cursor, last_key_at(now))

    patch.setattr(Cycle, "take", take_all)


def local_before_commit(patch: Patch) -> None:
    """The local state moves first, then the commit is tried."""
    init, outbox, advance = Master.__init__, Dispatch.outbox, Replica.advance
    masters: dict[Dispatch, Master] = {}

    def init_and_note(self: Master, *args: Any) -> None:
        init(self, *args)
        masters[self._dispatch] = self

    async def outbox_and_advance(self: Dispatch, cycle: Cycle, now: int) -> Outbox:
        result, master = await outbox(self, cycle, now), masters[self]
        end = await master.bus.end_offset(LEDGER, master.shard)
        advance(master.replica, cycle, cycle.entry(now), end + 1)
        return result

    def advance_once(self: Replica, cycle: Cycle, entry: Entry, ledger_offset: int, files: Any = None) -> None:
        if entry.number > self.entry.number:
            advance(self, cycle, entry, ledger_offset, files)

    patch.setattr(Master, "__init__", init_and_note)
    patch.setattr(Dispatch, "outbox", outbox_and_advance)
    patch.setattr(Replica, "advance", advance_once)


def count_cancelled(patch: Patch) -> None:
    """A cancelled message still counts among the pending ones of its topic."""
    topic_changes = Cycle.topic_changes

    def changes_of_others(self: Cycle, through: bytes) -> Any:
        self.removed = dict.fromkeys(self.removed, b"")
        return topic_changes(self, through)

    patch.setattr(Cycle, "topic_changes", changes_of_others)


def decide_after_take(patch: Patch) -> None:
    """What is due is chosen first, the commands of the cycle are answered afterwards."""
    apply, take = Cycle.apply, Cycle.take
    held: dict[int, CommandBatch] = {}

    def hold(
        self: Cycle, batch: CommandBatch, answers: Mapping[int, Answer] | None = None, view: View | None = None
    ) -> None:
        if answers is None:
            held[id(self)] = batch
        else:
            apply(self, batch, answers, view)

    def take_first(self: Cycle, now: int, keys: list[bytes], rows: list[bytes], complete: bool) -> None:
        take(self, now, keys, rows, complete)
        self._phase = Phase.COMMANDS  # a cycle refuses this order by itself
        apply(self, held.pop(id(self)))
        self._phase = Phase.DUE

    patch.setattr(Cycle, "apply", hold)
    patch.setattr(Cycle, "take", take_first)


def retry_below_cursor(patch: Patch) -> None:
    """A retry counts from the clock alone, also where that went back behind the cursor."""
    defer = Cycle.defer

    def defer_plainly(self: Cycle, due: Any, deferred: DeferredMessage) -> None:
        if deferred.to is not None and deferred.reason == "unknown_topic" and self.before.cursor > due[0]:
            deferred = replace(deferred, to=make_key(due_of(due[0]) + 1, offset_of(deferred.to), 0))
        defer(self, due, deferred)

    patch.setattr(Cycle, "defer", defer_plainly)


def count_from_reading(patch: Patch) -> None:
    """Relative times of plain records count from when a replica reads them, not from their append."""
    readings = count()

    def command_of_now(frame: bytes, timestamp: int, place: RecordPosition, judged: bool) -> Any:
        return command_of(frame, timestamp + next(readings) % 2, place, judged)

    patch.setattr(batch, "command_of", command_of_now)


def no_names_of_changes(patch: Patch) -> None:
    """Changes by name are answered without a look at the names of earlier cycles."""
    init = Lookups.__init__

    def init_without(self: Lookups, view: View, commands: CommandBatch) -> None:
        init(self, view, commands)
        named = {other.name for other in commands.others.values() if isinstance(other, ByName)}
        self.names = {name: holder for name, holder in self.names.items() if name not in named}

    patch.setattr(Lookups, "__init__", init_without)


def repeat_changes(patch: Patch) -> None:
    """A change of a job that was made before is made again."""
    patch.setattr(cycle, "earlier_step", lambda tags, tag: None)


def only_the_last_job(patch: Patch) -> None:
    """A message knows the last job alone that changed it."""
    patch.setattr(cycle, "earlier_step", lambda tags, tag: earlier_step(tags[:1], tag))


def forget_old_jobs(patch: Patch) -> None:
    """A job that a message tells of no more may change it once more."""
    patch.setattr(cycle, "earlier_step", lambda tags, tag: earlier_step(tags, tag) or None)


def move_behind_expiry(patch: Patch) -> None:
    """A message is moved to a time at which it has expired."""
    patch.setattr(cycle, "_is_behind_expiry", lambda change, row, timestamp: False)


def expiry_stays(patch: Patch) -> None:
    """A move with the expiry leaves it as it is."""
    patch.setattr(cycle, "_expiry_after", lambda change, row: expires_of(row))


def senders_headers_count(patch: Patch) -> None:
    """A sender's header is taken for one of duemq's own."""
    patch.setattr(row, "_senders_headers", lambda packed, count: (count, packed))


def one_answer_for_all_steps(patch: Patch) -> None:
    """A change of another step of the job counts as a repeat."""
    decide = Cycle._decide

    def decide_by_job(self: Cycle, *args: Any) -> Answer:
        answer = decide(self, *args)
        return Answer.REPEATED if answer is Answer.CHANGED_BEFORE else answer

    patch.setattr(Cycle, "_decide", decide_by_job)


def redrive_without_limit(patch: Patch) -> None:
    """How often a message was redriven is not looked at."""
    patch.setattr(cycle, "redrives_of", lambda row: 0)


def purge_for_show(patch: Patch) -> None:
    """A purged dead letter can be redriven."""
    patch.setattr(cycle, "PURGED", DEAD)


def nulls_stay_in_the_envelope(patch: Patch) -> None:
    """What a command says to be null is not null in its row."""
    patch.setattr(row, "NULLS", b"")


def nobody_asked(patch: Patch) -> None:
    """The history of a message does not say who asked for its changes."""

    patch.setattr(cycle, "with_change", lambda row, past, tag: with_change(row, past._replace(by=""), tag))


def only_the_last_changes(patch: Patch) -> None:
    """The history of a message loses its first change."""

    def keep_last(self: ChangeHistory, change: PastChange) -> ChangeHistory:
        changes = (*self.changes, change)[-row_notes.MAX_CHANGES :]
        return ChangeHistory(changes, self.left_out + len(self.changes) + 1 - len(changes))

    patch.setattr(ChangeHistory, "with_change", keep_last)


def own_time_of_changes(patch: Patch) -> None:
    """Each replica notes when it made a change itself."""
    readings = count()

    def with_own_time(row: bytes, past: PastChange, tag: str) -> bytes:
        return with_change(row, past._replace(at=past.at + next(readings) % 2), tag)

    patch.setattr(cycle, "with_change", with_own_time)


MUTANTS = (
    nulls_stay_in_the_envelope, nobody_asked, only_the_last_changes, own_time_of_changes,
    repeat_changes, only_the_last_job, forget_old_jobs, move_behind_expiry, expiry_stays, senders_headers_count,
    one_answer_for_all_steps, redrive_without_limit, purge_for_show,
    no_fence, early_apply, forget_late, skip_deferrals, cursor_past_undelivered, local_before_commit,
    count_cancelled, decide_after_take, retry_below_cursor, count_from_reading, no_names_of_changes,
)  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_every_mutant_is_found_out(mutant: Callable[[Patch], None], monkeypatch: Patch, tmp_path: Path) -> None:
    mutant(monkeypatch)
    for seed in range(40):
        try:
            asyncio.run(Schedule(seed, tmp_path / str(seed), MEMORY).run())
        except (AssertionError, DuemqError):
            return
    raise AssertionError("40 schedules found nothing wrong")
