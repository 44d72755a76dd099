"""Mutants of the index: each breaks one rule, and the random schedules of `test_index_model.py` must find it out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from duemq.delay.core.cycle import Cycle, Due
from duemq.delay.indexing import index_worker
from duemq.delay.indexing.index_worker import IndexWorker
from duemq.delay.reads.shard_reads import Reads
from duemq.model.errors import DuemqError
from duemq.storage.message_index import index, runs
from duemq.storage.message_index.index import MessageIndex
from duemq.storage.rocksdb import Memory
from tests.support.shard.index_schedule import IndexAndImports, IndexAndRetention

MEMORY = Memory(8 << 20, 8 << 20)
Patch = pytest.MonkeyPatch


def only_schedules(patch: Patch) -> None:
    """What is moved, put off or redriven gets no entry for its new key."""

    def placed_rows(self: Cycle) -> Iterable[Due]:
        return [(key, row) for key, row in self.placed.items() if key not in self.current_keys.values()]

    patch.setattr(Cycle, "placed_rows", placed_rows)


def none_that_ended_at_once(patch: Patch) -> None:
    """What is cancelled in the cycle that accepted it gets no entry."""
    patch.setattr(Cycle, "placed_rows", lambda self: self.placed.items())


def purge_early(patch: Patch) -> None:
    """A group of runs is forgotten while rows of it may be known."""
    first = runs.first_kept_bucket
    patch.setattr(index, "first_kept_bucket", lambda wait_class, horizon: first(wait_class, horizon) + 3)


def lose_a_page(patch: Patch) -> None:
    """A merge writes all pages but the last."""
    pages_of = runs.pages_of
    patch.setattr(index_worker, "pages_of", lambda entries: list(pages_of(entries))[:-1] or list(pages_of(entries)))


def begin_at_the_hash(patch: Patch) -> None:
    """A look-up begins with the first page that begins with the hash, not with the one before."""
    in_run = index._in_run

    class Rows:
        def __init__(self, rows: Any) -> None:
            self._rows = rows

        def seek_for_prev(self, key: bytes) -> None:
            self._rows.seek(key)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._rows, name)

    patch.setattr(index, "_in_run", lambda rows, *others: in_run(Rows(rows), *others))


def no_comparison(patch: Patch) -> None:
    """What has the same hash is what was looked for."""
    match = Reads.match

    def match_without_term(self: Reads, query: Any, *others: Any) -> Any:
        from dataclasses import replace

        return match(self, replace(query, key=None, label=None) if query.newest else query, *others)

    patch.setattr(Reads, "match", match_without_term)


def no_endings(patch: Patch) -> None:
    """A build indexes no message that has ended otherwise than by delivery."""

    async def none(self: IndexWorker, after: bytes, through: bytes) -> tuple[list[Any], None]:
        return [], None

    patch.setattr(IndexWorker, "_endings", none)


def no_files(patch: Patch) -> None:
    """Messages of imported files are not indexed."""
    add = MessageIndex.add
    patch.setattr(MessageIndex, "add", lambda self, rows, placed_ms, files=(): add(self, rows, placed_ms))


def index_twice(patch: Patch) -> None:
    """A build also indexes what a cycle has indexed since."""
    patch.setattr(IndexWorker, "_was_before", lambda self, key, row, applied: True)


def answer_before_it_is_built(patch: Patch) -> None:
    """An index answers while it is built."""
    patch.setattr(MessageIndex, "built", property(lambda self: self.state is not None))


MUTANTS = (
    only_schedules, none_that_ended_at_once, purge_early, lose_a_page, begin_at_the_hash, no_comparison, no_endings,
    no_files, index_twice, answer_before_it_is_built,
)  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_every_mutant_is_found_out(mutant: Callable[[Patch], None], monkeypatch: Patch, tmp_path: Path) -> None:
    mutant(monkeypatch)
    for seed in range(30):
        for kind in (IndexAndRetention, IndexAndImports):
            try:
                asyncio.run(kind(seed, tmp_path / f"{kind.__name__}{seed}", MEMORY).run())
            except (AssertionError, DuemqError):
                return
    raise AssertionError("60 schedules found nothing wrong")
