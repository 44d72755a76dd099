"""One shard that forgets, under random schedules: what the oracle of `test_shard_model.py` claims still holds.

Below, mutants: each breaks one rule of forgetting, and these schedules must find it out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq.delay import clean
from duemq.delay.master import Master
from duemq.delay.rules import Cycle
from duemq.model.errors import DuemqError
from duemq.model.key import first_key_at
from duemq.model.ledger import Answer
from duemq.storage.rocks import Memory
from duemq.storage.rows import MOVED, NAME, NAME_DUE, U64, WINDOW_MS
from duemq.storage.store import ShardStore
from tests.forgetful_schedule import ForgetfulSchedule

MEMORY = Memory(8 << 20, 8 << 20)
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("seed", range(100))
def test_random_schedule(seed: int, tmp_path: Path) -> None:
    asyncio.run(ForgetfulSchedule(seed, tmp_path, MEMORY).run())


def rest_past_what_is_pending(patch: Patch) -> None:
    """The cursor of a shard at rest is moved on whether or not all that is due was read."""
    horizon = Master._horizon
    patch.setattr(Master, "_horizon", lambda self, cycle, now, reached: horizon(self, cycle, now, now))


def answer_by_what_is_held(patch: Patch) -> None:
    """A replica answers from the rows it still has, whatever the ledger says is forgotten."""
    decide = Cycle._decide

    def decide_by_rows(self: Cycle, kind: int, key: bytes, row: Any, ended: Any) -> Answer:
        horizon = self.before.horizon
        object.__setattr__(self.before, "horizon", 0)
        try:
            return decide(self, kind, key, row, ended)
        finally:
            object.__setattr__(self.before, "horizon", horizon)

    patch.setattr(Cycle, "_decide", decide_by_rows)


def forget_names_that_are_held(patch: Patch) -> None:
    """A name is free again after its message's first due time, also where that was moved on."""

    def forget(store: ShardStore, horizon: int) -> Iterator[None]:
        rows = [row for row, _ in store.each(NAME_DUE) if U64.unpack_from(row)[0] < horizon]
        store.delete([NAME_DUE + row for row in rows] + [NAME + row[U64.size :] for row in rows])
        yield

    patch.setattr(clean, "_forget_names", forget)


def forget_moves_that_are_held(patch: Patch) -> None:
    """A move is dropped by the first due time of its message."""

    def forget(store: ShardStore, end: bytes) -> Iterator[None]:
        store.delete([MOVED + first for first, _ in store.each(MOVED) if first < end])
        yield

    patch.setattr(clean, "_forget_moves", forget)


def drop_up_to_the_end_of_the_window(patch: Patch) -> None:
    """What is dropped goes by a time that the cursor has not reached."""
    patch.setattr(clean, "first_key_at", lambda due: first_key_at(due + WINDOW_MS))


MUTANTS = (
    rest_past_what_is_pending, answer_by_what_is_held, forget_names_that_are_held, forget_moves_that_are_held,
    drop_up_to_the_end_of_the_window,
)  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_every_mutant_is_found_out(mutant: Callable[[Patch], None], monkeypatch: Patch, tmp_path: Path) -> None:
    mutant(monkeypatch)
    for seed in range(40):
        try:
            asyncio.run(ForgetfulSchedule(seed, tmp_path / str(seed), MEMORY).run())
        except (AssertionError, DuemqError):
            return
    raise AssertionError("40 schedules found nothing wrong")
