"""The list of imported files may be long: who asks for it gets what he asked for, and nobody else waits for that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duemq.delay.reads.local_reader import LocalReader
from duemq.model.messages.import_command import ImportCommand
from duemq.storage.keyspace import IMPORT
from duemq.storage.shard.records import IMPORTED, PENDING, REJECTED, ImportRecord, ImportRecords
from duemq.web.json_response import in_slices

COUNT = 2_300


class Rows:
    """The rows of a store, each as it was written."""

    def __init__(self, imports: Sequence[ImportRecord]) -> None:
        self.rows = sorted(one.row for one in imports)
        self.decoded = 0

    def each(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        assert prefix == IMPORT
        for key, raw in self.rows:
            if key >= prefix + start:
                self.decoded += 1
                yield key[1:], raw

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        raise AssertionError


def site() -> tuple[LocalReader, Rows]:
    states = {0: PENDING, 1: REJECTED}
    made = [
        ImportRecord(
            number * 3,
            ImportCommand(f"/s/{number % 2}/{number}", "0" * 64, 1, 0, 1),
            states.get(number % 10, IMPORTED),
            0,
        )
        for number in range(COUNT)
    ]
    rows = Rows(made)
    shard = SimpleNamespace(
        rebuilding=False,
        stopped=False,
        store=SimpleNamespace(imports=ImportRecords(rows)),
        why_pending=lambda _: "waits",
    )
    return LocalReader(cast(Any, SimpleNamespace(shards={0: shard}))), rows


@pytest.mark.anyio
async def test_imports_are_counted_by_state_and_path_and_some_are_listed() -> None:
    reader, _ = site()
    count, found = await reader.imports(0, None)
    assert count == COUNT and [one.offset for one in found] == [number * 3 for number in range(COUNT)]
    for state, number in ((PENDING, COUNT // 10), (REJECTED, COUNT // 10), (IMPORTED, COUNT * 8 // 10)):
        count, found = await reader.imports(0, state)
        assert (count, len(found), {one.state for one in found}) == (number, number, {state})
    assert await reader.imports(0, REJECTED, "/s/0/", 0) == (0, [])
    count, found = await reader.imports(0, PENDING, "/s/0/", 3)
    assert (count, [one.offset for one in found], found[0].reason) == (COUNT // 10, [0, 30, 60], "waits")


@pytest.mark.anyio
async def test_the_number_of_wanted_files_is_told_without_a_look_at_their_rows() -> None:
    reader, rows = site()
    before = rows.decoded
    assert await reader.imports(0, PENDING, "/s/", 0) == (COUNT // 10, [])
    assert rows.decoded == before


@pytest.mark.anyio
async def test_a_page_ends_the_search_and_the_next_one_goes_on_behind_it() -> None:
    reader, rows = site()
    before = rows.decoded
    assert len((await reader.imports(0, None, "/s/", 100, -1))[1]) == 100
    assert rows.decoded - before <= 500
    found: list[int] = []
    while page := (await reader.imports(0, IMPORTED, "/s/1/", 70, found[-1] if found else -1))[1]:
        found += [one.offset for one in page]
    assert found == [number * 3 for number in range(COUNT) if number % 2 and number % 10 not in (0, 1)]
    waiting = (await reader.imports(0, PENDING, "", 3, 60))[1]
    assert [one.offset for one in waiting] == [90, 120, 150]


@pytest.mark.anyio
async def test_records_of_other_paths_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, _ = site()
    decoded: list[bytes] = []
    decode = ImportRecord.decode

    def noted(key: bytes, raw: bytes) -> ImportRecord:
        decoded.append(key)
        return decode(key, raw)

    monkeypatch.setattr(ImportRecord, "decode", noted)
    assert (await reader.imports(0, IMPORTED, "/s/1/17"))[0] == 45
    assert len(decoded) == 56, "the rejected ones, too"
    assert await reader.imports(0, None, '/s/"1') == (0, [])


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
        await reader.imports(0, None)
        assert turns >= 4
        turns = 0
        assert await in_slices(range(COUNT), str) == [str(number) for number in range(COUNT)]
        assert turns >= 4
    finally:
        task.cancel()
