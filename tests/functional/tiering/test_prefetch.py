"""Sealed messages are read in threads, while windows are sealed, loaded and rewritten; and what that must not spoil."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duemq.cluster.shards.shard_reader import Query
from duemq.delay.core.limits import CycleLimits
from duemq.delay.reads.shard_reads import Reads
from duemq.delay.replica import prefetch
from duemq.delay.replica.prefetch import PrefetchedView
from duemq.delay.threads import in_thread
from duemq.delay.tiering import tiering
from duemq.delay.tiering.completion import complete_windows
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.model.errors import DamagedFile, StoreFailed
from duemq.model.messages.key import HIGHEST, LOWEST, due_of
from duemq.model.messages.message import CANCEL, MOVE, Change, Draft
from duemq.model.messages.row import read_row, without_payload
from duemq.model.timing import WINDOW_MS
from duemq.storage.delay_files.catalog import FOLDER
from duemq.storage.delay_files.key_index import SealedKeys
from duemq.storage.delay_files.reader import DelayFileReader
from duemq.storage.delay_files.sealed_file import DelayFile
from duemq.storage.keyspace import ROW
from duemq.storage.shard.change_journal import Journal
from tests.support.shard.shard_world import SHARD, START, SimNode, World

pytestmark = pytest.mark.anyio

FIRST = (START // WINDOW_MS + 5) * WINDOW_MS
COUNT = 40


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[SimNode]:
    """A master with messages in three far windows, not sealed yet."""
    cycle_limits = CycleLimits(max_commands=1_000, max_messages=1_000, dead_letter_topic="dlq")
    policy = TieringPolicy(rows=COUNT, quiet_ms=0, rewrite_rows=1)
    world = World(tmp_path, cycle_limits, {"one": 1, "dlq": 1}, delay_files=policy)
    await world.start(1)
    (node,) = world.nodes
    await node.promote()
    for window in range(3):
        start = FIRST + window * WINDOW_MS
        await world.produce([Draft(topic="one", payload=b"%d" % n, due=start + n // 3) for n in range(COUNT)])
    await world.tick(node)
    yield node
    world.close()


def keys_of(node: SimNode, window: int) -> list[bytes]:
    return list(node.world.oracle.messages)[window * COUNT : (window + 1) * COUNT]


def files_in(node: SimNode) -> list[str]:
    return sorted(str(path.relative_to(node.path / FOLDER)) for path in (node.path / FOLDER).rglob("*.parquet"))


@contextmanager
def no_reading_here() -> Iterator[list[str]]:
    """Files are not read by this thread. Gives the names of the files read by others."""
    here, names = threading.get_ident(), []
    rows, parts, holds = DelayFile.rows, DelayFile.parts, SealedKeys.holds

    def checked(read: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Any, *arguments: Any, **named: Any) -> Any:
            assert threading.get_ident() != here, "the event loop waits for a file"
            names.append(str(self.path))
            return read(self, *arguments, **named)

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DelayFile, "rows", checked(rows))
        patch.setattr(SealedKeys, "holds", checked(holds))
        patch.setattr(DelayFile, "parts", checked(parts))
        yield names


async def test_several_windows_are_sealed_at_once(node: SimNode) -> None:
    steps: list[str] = []
    node.delay_files.failpoint = steps.append
    await node.delay_files.step()
    assert steps == ["checkpoint", "written", "committed", "committed", "committed", "flushed"]
    assert len(files_in(node)) == 3
    assert not list(node.store.each(ROW))
    node.world.check(node)
    steps.clear()
    node.world.now = FIRST + WINDOW_MS - node.world.delay_files.ahead_ms
    await node.delay_files.step()
    assert steps == ["begun", "sst", "ingested", "loaded", "loaded", "unlinked"]
    assert len(files_in(node)) == 1 and len(list((node.path / FOLDER).iterdir())) == 1
    node.world.check(node)


async def test_one_window_that_fills_meanwhile_does_not_spoil_the_others(
    node: SimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Journal.__init__, "__defaults__", (3,))

    async def fill(node: SimNode) -> None:
        node.world.meanwhile = None
        start = FIRST + WINDOW_MS
        await node.world.produce([Draft(topic="one", payload=b"", due=start + n) for n in range(5)])
        await node.world.produce([Draft(topic="one", payload=b"", due=FIRST + n) for n in range(3)])
        await node.world.tick(node)

    node.world.meanwhile = fill
    await node.delay_files.step()
    assert files_in(node) == [f"{start}/000001.parquet" for start in (FIRST, FIRST + 2 * WINDOW_MS)]
    assert len(list(node.store.each(ROW))) == COUNT + 5 + 3
    node.world.check(node)


async def test_what_is_moved_away_while_it_is_sealed_is_counted_exactly(node: SimNode) -> None:
    """Before the checkpoint, after it, and both of one that came in between."""
    keys = keys_of(node, 0)
    turn = iter([keys[:3], keys[3:7]])

    async def cancel(node: SimNode) -> None:
        await node.world.produce([Change(CANCEL, key, 0) for key in next(turn, [])])
        await node.world.tick(node)

    node.world.meanwhile = cancel
    await node.delay_files.step()
    node.world.meanwhile = None
    assert node.store.delay_files.pending(FIRST) == COUNT - 7
    assert node.store.delay_files.drop_count(FIRST) == 7
    node.world.check(node)
    node.store.flush()
    node.kill()
    assert (node.store.delay_files.pending(FIRST), node.store.delay_files.drop_count(FIRST)) == (COUNT - 7, 7)


async def test_a_load_that_fails_is_begun_again_without_what_was_cancelled(
    node: SimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.delay_files.step()
    node.world.now = FIRST - 60_000
    first = keys_of(node, 0)[0]

    async def cancel(node: SimNode) -> None:
        node.world.meanwhile = None
        await node.world.produce([Change(CANCEL, first, 0)])
        await node.world.tick(node)

    def fail(*arguments: object, **options: object) -> None:
        raise StoreFailed("the disk is away")

    node.world.meanwhile = cancel
    with monkeypatch.context() as patch:
        patch.setattr(tiering, "commit_load", fail)
        with pytest.raises(StoreFailed):
            await node.delay_files.step()
    assert node.store.rows([first]) == [None]
    await node.delay_files.step()
    assert node.store.rows([first]) == [None]
    assert len(list(node.store.each(ROW))) == COUNT - 1
    node.world.check(node)


async def test_dropped_messages_are_counted_over_a_second_file_and_a_restart(node: SimNode) -> None:
    world = node.world
    await node.delay_files.step()
    await world.produce([Change(CANCEL, key, 0) for key in keys_of(node, 0)[:3]])
    await world.produce([Draft(topic="one", payload=b"new", due=FIRST + n) for n in range(COUNT)])
    await world.tick(node)
    await node.delay_files.step()
    assert len(files_in(node)) == 4
    assert node.store.delay_files.drop_count(FIRST) == 3
    node.kill()
    assert (node.store.delay_files.drop_count(FIRST), node.store.delay_files.pending(FIRST)) == (3, 2 * COUNT - 3)


async def test_a_window_with_nothing_left_loses_its_file_without_a_process(node: SimNode) -> None:
    await node.delay_files.step()
    await node.world.produce([Change(CANCEL, key, 0) for key in keys_of(node, 1)])
    while node.store.delay_files.pending(FIRST + WINDOW_MS):
        await node.world.tick(node)

    async def none(job: object) -> list[Any]:
        raise AssertionError("no process is needed")

    node.delay_files.work = none
    assert await node.delay_files.step()
    assert files_in(node) == [f"{start}/000001.parquet" for start in (FIRST, FIRST + 2 * WINDOW_MS)]
    assert not await node.delay_files.step()
    node.world.check(node)


async def test_a_file_with_many_dead_messages_is_rewritten_while_more_die(node: SimNode) -> None:
    await node.delay_files.step()
    keys = keys_of(node, 2)
    await node.world.produce([Change(CANCEL, key, 0) for key in keys[: COUNT // 2]])
    while node.store.delay_files.drop_count(FIRST + 2 * WINDOW_MS) < COUNT // 2:
        await node.world.tick(node)
    turn = iter([keys[COUNT // 2 :][:3], keys[COUNT // 2 :][3:5]])

    async def cancel(node: SimNode) -> None:
        await node.world.produce([Change(CANCEL, key, 0) for key in next(turn, [])])
        await node.world.tick(node)

    node.world.meanwhile = cancel
    assert await node.delay_files.step()
    node.world.meanwhile = None
    assert files_in(node)[-1] == f"{FIRST + 2 * WINDOW_MS}/000002.parquet" and len(files_in(node)) == 3
    assert node.store.delay_files.rows(FIRST + 2 * WINDOW_MS) == COUNT // 2
    assert node.store.delay_files.drop_count(FIRST + 2 * WINDOW_MS) == 5
    node.world.check(node)
    assert not await node.delay_files.step()


async def test_what_is_cancelled_while_dropped_keys_are_listed_is_counted_once(
    node: SimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.delay_files.step()
    for window in (0, 1):
        await node.world.produce([Change(CANCEL, key, 0) for key in keys_of(node, window)[: COUNT // 2]])
    while node.world.oracle.applied < len(node.world.oracle.commands):
        await node.world.tick(node)
    late = [keys_of(node, 0)[-1], keys_of(node, 1)[-1]]

    async def sleep(seconds: float) -> None:
        """The listing of the first window has begun, that of the second has not."""
        if late:
            changes = [Change(CANCEL, key, 0) for key in late]
            late.clear()
            await node.world.produce(changes)
            await node.world.tick(node)

    mine = SimpleNamespace(**vars(asyncio) | {"sleep": sleep})
    monkeypatch.setattr(tiering, "asyncio", mine)
    assert await node.delay_files.step()
    files = node.store.delay_files
    assert (files.rows(FIRST), files.drop_count(FIRST)) == (COUNT // 2, 1), "in the new file, and dropped there"
    assert (files.rows(FIRST + WINDOW_MS), files.drop_count(FIRST + WINDOW_MS)) == (COUNT // 2 - 1, 0), "not in it"
    node.world.check(node)


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_many_cancels_of_sealed_messages_read_in_threads_and_in_several_cycles(
    node: SimNode, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Each of the three windows is one row group."""
    monkeypatch.setattr(prefetch, "_MAX_BYTES", most)
    monkeypatch.setattr("duemq.storage.delay_files.reader._KEYS_BYTES", 1)  # what a row group counts
    monkeypatch.setattr("duemq.storage.delay_files.reader._OPENING_BYTES", 0)
    await node.delay_files.step()
    firsts = list(node.world.oracle.messages)
    before = node.replica.entry.number
    await node.world.produce([Change(CANCEL, key, 0) for key in firsts])
    with no_reading_here() as read:
        while node.replica.entry.pending:
            await node.world.tick(node)
    assert node.replica.entry.number - before == -(-3 // most)
    assert len(read) == 3, "a file is read once for all keys of a cycle"
    node.world.check(node)


async def test_a_follower_reads_in_threads_too(tmp_path: Path) -> None:
    cycle_limits = CycleLimits(max_commands=1_000, max_messages=1_000, dead_letter_topic="dlq")
    world = World(tmp_path, cycle_limits, {"one": 1, "dlq": 1}, delay_files=TieringPolicy(rows=COUNT, quiet_ms=0))
    await world.start(2)
    master, standby = world.nodes
    await master.promote()
    await world.produce([Draft(topic="one", payload=b"%d" % n, due=FIRST + n) for n in range(COUNT)])
    await world.tick(master)
    await standby.follow()
    await standby.delay_files.step()
    await world.produce([Change(CANCEL, key, 0) for key in list(world.oracle.messages)[::2]])
    await world.tick(master)
    with no_reading_here() as read:
        await standby.follow()
    assert read
    world.check(standby)
    world.close()


@pytest.mark.parametrize("change", ["seal", "load", "rewrite", "drop"])
async def test_a_look_up_survives_what_is_done_to_the_files_meanwhile(
    node: SimNode, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = node.world
    if change != "seal":
        await node.delay_files.step()
    victims = keys_of(node, 0)[1:] if change == "drop" else keys_of(node, 0)[: COUNT // 2 + 1]
    wanted = [keys_of(node, 0)[-1], *keys_of(node, 1)[:2]]
    if change == "drop":
        victims, wanted = keys_of(node, 0), keys_of(node, 1)[:3]
    expected = node.store.rows(wanted)
    if change in ("rewrite", "drop"):
        await world.produce([Change(CANCEL, key, 0) for key in victims])
        while world.oracle.applied < len(world.oracle.commands):
            await world.tick(node)
        wanted = [victims[0], *wanted]
        expected = [None, *expected]
    elif change == "load":
        world.now = FIRST - 60_000

    async def meanwhile(work: Callable[..., Any], *arguments: Any) -> Any:
        """The thread comes too late: the table is another when it opens its files."""
        monkeypatch.setattr(prefetch, "in_thread", in_thread)
        assert await node.delay_files.step()
        return work(*arguments)

    view = PrefetchedView(node.store)
    monkeypatch.setattr(prefetch, "in_thread", meanwhile)
    await view.read(wanted)
    monkeypatch.setattr(prefetch, "in_thread", in_thread)
    if change == "seal":  # nothing was read, for nothing was in files
        await node.delay_files.step()
    assert view.rows(wanted) == expected


async def test_what_was_in_no_file_is_looked_up_again_once_there_are_others(node: SimNode) -> None:
    """A message that comes for a sealed window, and is sealed with a second file while a look-up waits."""
    world = node.world
    await node.delay_files.step()
    await world.produce([Draft(topic="one", payload=b"new %d" % n, due=FIRST + n) for n in range(COUNT)])
    await world.tick(node)
    (key, *_) = [key for key, _ in node.store.each(ROW)]
    (row,) = node.store.rows([key])
    view = PrefetchedView(node.store)
    view._rows[key] = None  # as one would find that looked between two batches
    await node.delay_files.step()
    assert len(files_in(node)) == 4
    assert view.rows([key]) == [row]


async def test_a_damaged_file_is_not_taken_for_one_that_left(node: SimNode) -> None:
    await node.delay_files.step()
    (node.path / FOLDER / files_in(node)[0]).unlink()
    with pytest.raises(DamagedFile, match="000001"):
        await PrefetchedView(node.store).read(keys_of(node, 0)[:1])
    await PrefetchedView(node.store).read(keys_of(node, 1)[:1])


async def test_another_file_in_the_place_of_one_is_refused(node: SimNode) -> None:
    await node.delay_files.step()
    first, second, _ = (node.path / FOLDER / name for name in files_in(node))
    first.write_bytes(second.read_bytes())
    with pytest.raises(DamagedFile, match="another"):
        node.store.rows(keys_of(node, 0)[:1])
    node.world.now = FIRST
    with pytest.raises(DamagedFile, match="another"):
        await node.delay_files.step()
    assert not list(node.store.each(ROW))


async def test_a_list_reads_each_part_once_and_in_threads(node: SimNode, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.delay_files.step()
    monkeypatch.setattr("duemq.delay.reads.shard_reads._PART", 7)
    shard = SimpleNamespace(store=node.store, replica=node.replica, number=SHARD)
    with no_reading_here() as read:
        found = await Reads(cast(Any, shard)).find(Query(limit=1_000), LOWEST)
    assert [key for key, _ in found.messages] == sorted(node.world.oracle.messages)
    assert len(read) <= 2 * 3, "each part once, and once to find its end"


async def test_a_list_misses_nothing_where_a_window_has_rows_beside_its_files(
    node: SimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.delay_files.step()
    await node.world.produce([Draft(topic="one", payload=b"new", due=FIRST + n % 9) for n in range(COUNT // 2)])
    await node.world.produce([Change(CANCEL, key, 0) for key in keys_of(node, 0)[5:15]])
    await node.world.tick(node)
    shard = SimpleNamespace(store=node.store, replica=node.replica, number=SHARD)
    for part in (1, 2, 7):
        monkeypatch.setattr("duemq.delay.reads.shard_reads._PART", part)
        found = await Reads(cast(Any, shard)).find(Query(limit=1_000), LOWEST)
        assert [key for key, _ in found.messages] == sorted(node.world.oracle.pending)
        through = FIRST + 4
        found = await Reads(cast(Any, shard)).find(Query(limit=1_000, due_to=through), LOWEST)
        assert [key for key, _ in found.messages] == sorted(
            key for key in node.world.oracle.pending if due_of(key) < through
        )


async def test_a_moved_message_is_read_in_a_thread_where_it_is_now(node: SimNode) -> None:
    first = keys_of(node, 0)[0]
    await node.world.produce([Change(MOVE, first, FIRST + WINDOW_MS + 5)])
    await node.world.tick(node)
    await node.delay_files.step()
    await node.world.produce([Change(CANCEL, first, 0)])
    with no_reading_here() as read:
        await node.world.tick(node)
    assert read
    assert first not in node.world.oracle.pending
    node.world.check(node)


async def test_files_that_are_gone_are_not_held_open(node: SimNode) -> None:
    await node.delay_files.step()
    for window in range(3):
        await PrefetchedView(node.store).read(keys_of(node, window)[:1])
    assert len(node.store.delay_files.reader.open_files) == 3
    node.world.now = FIRST + 2 * WINDOW_MS
    await node.delay_files.step()
    assert not node.store.delay_files.reader.open_files


async def test_reading_one_does_not_stop_the_event_loop(node: SimNode) -> None:
    await node.delay_files.step()
    shard = SimpleNamespace(store=node.store, replica=node.replica, number=SHARD)
    reads = Reads(cast(Any, shard))
    with no_reading_here() as read:
        for key in keys_of(node, 1)[:3]:
            state = await reads.state(key)
            assert state is not None and state.status == "scheduled"
    assert len(read) == 3


async def test_a_cancel_reads_no_row_and_keeps_in_the_end_what_it_would_keep_of_any_row(
    node: SimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dict(zip(*node.store.scan(LOWEST, HIGHEST, 1_000, 1 << 30), strict=True))
    await node.delay_files.step()
    asked: list[bool] = []
    read = DelayFileReader.rows_in_order

    def noting(self: DelayFileReader, *args: Any, payload: bool) -> Any:
        asked.append(payload)
        return read(self, *args, payload=payload)

    monkeypatch.setattr(DelayFileReader, "rows_in_order", noting)
    first, second, third = keys_of(node, 0)[:3]
    await node.world.produce([Change(CANCEL, first, 0)])
    await node.world.tick(node)
    await node.world.produce([Change(CANCEL, second, 0), Change(MOVE, third, FIRST + 7)])
    await node.world.tick(node)
    assert asked == [True], "of the move alone"
    await complete_windows(node.store, [FIRST])
    ended = node.store.endings([first, second])
    assert [one and one.row for one in ended] == [without_payload(before[first]), without_payload(before[second])]
    (moved,) = node.store.current_keys([third])
    assert moved is not None
    assert read_row(node.store.rows([moved])[0] or b"").payload == read_row(before[third]).payload
    node.world.check(node)


async def test_a_row_that_was_read_for_a_list_is_read_again_where_its_payload_is_needed(node: SimNode) -> None:
    before = dict(zip(*node.store.scan(LOWEST, HIGHEST, 1_000, 1 << 30), strict=True))
    await node.delay_files.step()
    view, key = PrefetchedView(node.store), keys_of(node, 0)[0]
    await view.read([key], payload=False)
    assert view.rows([key]) == [without_payload(before[key])]
    await view.read([key])
    assert view.rows([key]) == [before[key]]
    await view.read([key], payload=False)
    assert view.rows([key]) == [before[key]]
