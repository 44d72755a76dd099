"""One shard that forgets, under random schedules: what the oracle of `test_shard_model.py` claims still holds.

Below, mutants: each breaks one rule of forgetting, and these schedules must find it out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq.delay.core.cycle import Cycle
from duemq.delay.replica import retention
from duemq.delay.replica.retention import horizon_for
from duemq.delay.shard import master
from duemq.delay.shard.master import Master
from duemq.model.errors import DuemqError
from duemq.model.log.ledger import Answer
from duemq.model.messages.key import LOWEST, first_key_at
from duemq.model.messages.message import Change
from duemq.model.timing import WINDOW_MS
from duemq.storage.keyspace import MOVED, NAME, NAME_DUE, U64
from duemq.storage.rocksdb import Memory
from duemq.storage.shard.store import ShardStore
from tests.support.shard.retention_schedule import RetentionSchedule
from tests.support.shard.seeds import SEEDS

MEMORY = Memory(8 << 20, 8 << 20)
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("seed", SEEDS)
def test_random_schedule(seed: int, tmp_path: Path) -> None:
    asyncio.run(RetentionSchedule(seed, tmp_path, MEMORY).run())


def rest_past_what_is_pending(patch: Patch) -> None:
    """The cursor of a shard at rest is moved on whether or not all that is due was read."""
    horizons = Master._horizons
    patch.setattr(Master, "_horizons", lambda self, cycle, now, reached: horizons(self, cycle, now, now))


def answer_by_what_is_held(patch: Patch) -> None:
    """A replica answers from the rows it still has, whatever the ledger says is forgotten."""
    decide = Cycle._decide

    def decide_by_rows(self: Cycle, change: Change, key: bytes, row: Any, ended: Any) -> Answer:
        before = self.before
        horizons = before.horizon, before.end_horizon
        object.__setattr__(before, "horizon", 0)
        object.__setattr__(before, "end_horizon", 0)
        try:
            return decide(self, change, key, row, ended)
        finally:
            object.__setattr__(before, "horizon", horizons[0])
            object.__setattr__(before, "end_horizon", horizons[1])

    patch.setattr(Cycle, "_decide", decide_by_rows)


def forget_names_that_are_held(patch: Patch) -> None:
    """A name is free again after its message's first due time, also where that was moved on."""

    def forget(store: ShardStore, horizon: int) -> Iterator[None]:
        rows = [row for row, _ in store.each(NAME_DUE) if U64.unpack_from(row)[0] < horizon]
        store.delete([NAME_DUE + row for row in rows] + [NAME + row[U64.size :] for row in rows])
        yield

    patch.setattr(retention, "_purge_names", forget)


def forget_moves_that_are_held(patch: Patch) -> None:
    """A move is dropped by the first due time of its message."""

    def forget(store: ShardStore, end: bytes) -> Iterator[None]:
        store.delete([MOVED + first for first, _ in store.each(MOVED) if first < end])
        yield

    patch.setattr(retention, "_purge_moves", forget)


def drop_up_to_the_end_of_the_window(patch: Patch) -> None:
    """What is dropped goes by a time that the cursor has not reached."""
    patch.setattr(retention, "first_key_at", lambda due: first_key_at(due + WINDOW_MS))


def forget_by_due_times(patch: Patch) -> None:
    """A window is forgotten by when its messages were due, and not by when they ended."""
    patch.setattr(master, "horizon_for", lambda cursor, cutoff, last_ends: horizon_for(cursor, cutoff, {}))


def place_before_the_cursors_window(patch: Patch) -> None:
    """What was due long ago lies among what is forgotten."""
    init = Cycle.__init__

    def without_floor(self: Cycle, *args: Any) -> None:
        init(self, *args)
        self._floor = LOWEST

    patch.setattr(Cycle, "__init__", without_floor)


def forget_ends_by_due_times(patch: Patch) -> None:
    """What was cancelled is never forgotten before its window is over."""
    patch.setattr(retention, "_purge_ended", lambda store, end_horizon: iter(()))


MUTANTS = (
    forget_by_due_times, place_before_the_cursors_window, forget_ends_by_due_times,
    rest_past_what_is_pending, answer_by_what_is_held, forget_names_that_are_held, forget_moves_that_are_held,
    drop_up_to_the_end_of_the_window,
)  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_every_mutant_is_found_out(mutant: Callable[[Patch], None], monkeypatch: Patch, tmp_path: Path) -> None:
    mutant(monkeypatch)
    for seed in range(40):
        try:
            asyncio.run(RetentionSchedule(seed, tmp_path / str(seed), MEMORY).run())
        except (AssertionError, DuemqError):
            return
    raise AssertionError("40 schedules found nothing wrong")
