"""The list of adopted files may be long: who asks for it gets what he asked for, and nobody else waits for that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duemq.delay.reads.local_reader import LocalReader
from duemq.model.adoption import Adopt
from duemq.storage.imports.records import ADOPTED, REFUSED, WANTED, Adoption, Adoptions
from duemq.storage.shard.keyspace import ADOPTION
from duemq.web.reply import in_slices

COUNT = 2_300


class Rows:
    """The rows of a store, each as it was written."""

    def __init__(self, adoptions: Sequence[Adoption]) -> None:
        self.rows = sorted(one.row for one in adoptions)
        self.decoded = 0

    def each(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        assert prefix == ADOPTION
        for key, raw in self.rows:
            if key >= prefix + start:
                self.decoded += 1
                yield key[1:], raw

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        raise AssertionError


def site() -> tuple[LocalReader, Rows]:
    states = {0: WANTED, 1: REFUSED}
    made = [
        Adoption(number * 3, Adopt(f"/s/{number % 2}/{number}", "0" * 64, 1, 0, 1), states.get(number % 10, ADOPTED), 0)
        for number in range(COUNT)
    ]
    rows = Rows(made)
    shard = SimpleNamespace(
        rebuilding=False, stopped=False, store=SimpleNamespace(adoptions=Adoptions(rows)), why_wanted=lambda _: "waits"
    )
    return LocalReader(cast(Any, SimpleNamespace(shards={0: shard}))), rows


@pytest.mark.anyio
async def test_adoptions_are_counted_by_state_and_path_and_some_are_listed() -> None:
    reader, _ = site()
    count, found = await reader.adoptions(0, None)
    assert count == COUNT and [one.offset for one in found] == [number * 3 for number in range(COUNT)]
    for state, number in ((WANTED, COUNT // 10), (REFUSED, COUNT // 10), (ADOPTED, COUNT * 8 // 10)):
        count, found = await reader.adoptions(0, state)
        assert (count, len(found), {one.state for one in found}) == (number, number, {state})
    assert await reader.adoptions(0, REFUSED, "/s/0/", 0) == (0, [])
    count, found = await reader.adoptions(0, WANTED, "/s/0/", 3)
    assert (count, [one.offset for one in found], found[0].reason) == (COUNT // 10, [0, 30, 60], "waits")


@pytest.mark.anyio
async def test_the_number_of_wanted_files_is_told_without_a_look_at_their_rows() -> None:
    reader, rows = site()
    before = rows.decoded
    assert await reader.adoptions(0, WANTED, "/s/", 0) == (COUNT // 10, [])
    assert rows.decoded == before


@pytest.mark.anyio
async def test_others_have_their_turn_while_all_are_listed() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    try:
        reader, _ = site()
        await reader.adoptions(0, None)
        assert turns >= 4
        turns = 0
        assert await in_slices(range(COUNT), str) == [str(number) for number in range(COUNT)]
        assert turns >= 4
    finally:
        task.cancel()
