"""A cancel in a delay file is decided by the key alone; what is kept of the message is read later, and never lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duemq.cluster.shards.shard_reader import MessageState, Query
from duemq.delay.core.limits import CycleLimits
from duemq.delay.reads.shard_reads import Reads
from duemq.delay.replica.prefetch import PrefetchedView
from duemq.delay.replica.retention import purge_before
from duemq.delay.tiering import completion
from duemq.delay.tiering.completion import CompletionPass, CompletionTimer, complete_windows
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.model.errors import CorruptStore, DamagedFile
from duemq.model.log.ledger import Answer
from duemq.model.messages.key import LOWEST, first_key_at
from duemq.model.messages.message import CANCEL, MOVE, Change, Draft
from duemq.model.messages.names import of_client
from duemq.model.messages.row_notes import ChangeHistory, PastChange
from duemq.model.timing import WINDOW_MS
from duemq.storage.checkpoint.checkpoint import make_checkpoint
from duemq.storage.delay_files.catalog import FOLDER
from duemq.storage.delay_files.sealed_file import DelayFile
from duemq.storage.keyspace import DROPPED, ENDED, ENDED_IN, MOVED, NAME, ROWLESS_COUNT
from duemq.storage.shard.store import ShardStore
from duemq.storage.tiering.transitions import commit_load
from tests.support.shard.shard_world import SHARD, START, SimNode, World

pytestmark = pytest.mark.anyio

FIRST = (START // WINDOW_MS + 5) * WINDOW_MS
COUNT = 40


def draft(n: int, window: int) -> Draft:
    """One with everything that a message can have."""
    return Draft(
        "one", b"%d" % n, FIRST + window * WINDOW_MS + n, b"k%d" % n, labels=("a", f"l{n}"), expires=FIRST + 10**9,
        name=of_client(f"{window}-{n}"), fingerprint=bytes(16),
    )  # fmt: skip


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[SimNode]:
    """A master whose messages are all in the delay files of two windows."""
    policy = TieringPolicy(rows=COUNT, quiet_ms=0, rewrite_rows=1)
    world = World(tmp_path, CycleLimits(max_commands=1_000, max_messages=1_000), {"one": 1}, delay_files=policy)
    await world.start(1)
    (node,) = world.nodes
    await node.promote()
    for window in range(2):
        await world.produce([draft(n, window) for n in range(COUNT)])
    await world.tick(node)
    await node.delay_files.step()
    node.store.flush()
    yield node
    world.close()


def keys_of(node: SimNode, window: int) -> list[bytes]:
    return list(node.world.oracle.messages)[window * COUNT : (window + 1) * COUNT]


def reads_of(node: SimNode, lost: list[Exception] | None = None) -> Reads:
    shard = SimpleNamespace(store=node.store, replica=node.replica, number=SHARD)
    shard.lose = lambda store, error: (lost if lost is not None else []).append(error)
    return Reads(cast(Any, shard))


async def cancel(node: SimNode, keys: list[bytes]) -> list[Answer]:
    first = len(node.world.oracle.commands)
    await node.world.produce([Change(CANCEL, key, 0) for key in keys])
    await node.world.tick(node)
    return [answer for offset, answer in sorted(node.replica.entry.answers.items()) if offset >= first]


async def states(node: SimNode, keys: list[bytes]) -> list[MessageState | None]:
    return [await reads_of(node).state(key) for key in keys]


def rowless(node: SimNode, keys: list[bytes]) -> int:
    return sum(ended is not None and not ended.row for ended in node.store.endings(keys))


def forbid_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(*args: object, **options: object) -> None:
        raise AssertionError("a row is read")

    monkeypatch.setattr(DelayFile, "rows", rows)
    monkeypatch.setattr(DelayFile, "parts", rows)


async def test_a_cancel_reads_no_row_and_a_look_up_tells_all_of_it(
    node: SimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(node, 0)[:5]
    before = await states(node, keys)
    with monkeypatch.context() as patch:
        forbid_rows(patch)
        assert await cancel(node, keys) == [Answer.OK] * 5
    assert rowless(node, keys) == 5
    after = await states(node, keys)
    at = node.world.now
    history = ChangeHistory((PastChange(CANCEL, at),))
    for was, now in zip(before, after, strict=True):
        assert was is not None
        assert now == replace(was, status="cancelled", cancelled_at=at, payload=None, history=history)
    await complete_windows(node.store, [FIRST])
    assert rowless(node, keys) == 0
    node.world.check(node)
    forbid_rows(monkeypatch)
    assert await states(node, keys) == after


async def test_a_list_of_cancelled_messages_has_those_that_were_not_read(node: SimNode) -> None:
    keys = [keys_of(node, 0)[3], keys_of(node, 1)[4]]
    await cancel(node, keys)
    found = await reads_of(node).find(Query(status="cancelled", label="l3", limit=10), LOWEST)
    assert [state.key for _, state in found.messages] == [b"k3"]
    found = await reads_of(node).find(Query(status="cancelled", topic="one", limit=10), LOWEST)
    assert [state.labels for _, state in found.messages] == [("a", "l3"), ("a", "l4")]


async def test_many_are_looked_up_together(node: SimNode) -> None:
    keys = keys_of(node, 0)[:7]
    await cancel(node, keys[:4])
    heads = await reads_of(node).heads(keys)
    assert [head and head.status for head in heads] == ["cancelled"] * 4 + ["scheduled"] * 3
    assert await reads_of(node).when_ended(keys) == [node.world.now] * 4 + [0] * 3


async def test_keys_that_nothing_has_are_unknown(node: SimNode) -> None:
    """An id says that it was issued; so it was by a folder of which only an older backup is left."""
    keys = [first_key_at(FIRST + 1), first_key_at(FIRST + WINDOW_MS), keys_of(node, 0)[1][:-1] + b"\x07"]
    assert await cancel(node, keys) == [Answer.UNKNOWN] * 3
    node.world.check(node)


async def test_what_was_cancelled_and_forgotten_stays_unknown(node: SimNode) -> None:
    """A rewritten file knows nothing of what it left out."""
    world, keys = node.world, keys_of(node, 0)[:20]
    await cancel(node, keys)
    assert await node.delay_files.step(), "rewritten"
    for key in keys:
        (ended,) = node.store.endings([key])
        assert ended is not None and ended.row
    for _ in purge_before(node.store, 0, world.now + 1):
        pass
    assert node.store.endings(keys) == [None] * 20
    first = len(world.oracle.commands)
    await world.produce_unseen([Change(CANCEL, key, 0) for key in keys])
    assert node.master is not None
    await node.master.tick()
    assert {node.replica.entry.answers[offset] for offset in range(first, first + 20)} == {Answer.UNKNOWN}
    assert node.replica.entry.pending == 2 * COUNT - 20


async def test_all_is_there_after_a_kill(node: SimNode) -> None:
    keys = keys_of(node, 0)[:9]
    before = await states(node, keys)
    await cancel(node, keys[:3])
    node.store.flush()
    await cancel(node, keys[3:6])
    node.kill()
    assert rowless(node, keys) == 3
    await node.promote()
    assert rowless(node, keys) == 6, "the ledger is followed without rows, too"
    assert await cancel(node, keys[2:9]) == [Answer.CANCELLED_BEFORE] * 4 + [Answer.OK] * 3
    assert await CompletionPass(node.store, [FIRST]).step()
    assert rowless(node, keys) == 0
    node.store.flush()
    node.kill()
    assert (rowless(node, keys), node.store.delay_files.rowless(FIRST)) == (0, 0)
    await node.promote()
    for was, now in zip(before, await states(node, keys), strict=True):
        assert was is not None and now is not None
        assert (now.status, now.topic, now.key, now.labels, now.due) == (
            "cancelled",
            "one",
            was.key,
            was.labels,
            was.due,
        )
    node.world.check(node)


@pytest.mark.parametrize("what", ["load", "rewrite", "drop"])
async def test_a_file_goes_only_after_all_was_read(node: SimNode, what: str) -> None:
    """Also what is cancelled while a process works, and after it."""
    world, keys = node.world, keys_of(node, 0)
    at_first, late = (keys[:-4], keys[-4:-2]) if what != "drop" else (keys, [])
    await cancel(node, at_first if what != "load" else keys[:3])
    if what == "load":
        world.now = FIRST - 60_000
    later = iter([late])

    async def meanwhile(node: SimNode) -> None:
        await cancel(node, next(later, []))

    world.meanwhile = meanwhile
    before = {path.name for path in (node.path / FOLDER / str(FIRST)).glob("*")}
    assert await node.delay_files.step()
    world.meanwhile = None
    assert {path.name for path in (node.path / FOLDER / str(FIRST)).glob("*.parquet")} != before
    assert node.store.delay_files.rowless(FIRST) == 0 == rowless(node, keys)
    world.check(node)
    node.store.flush()
    node.kill()
    await node.promote()
    world.check(node)


async def test_what_is_cancelled_while_rows_are_read_is_read_too(
    node: SimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(node, 0)
    await cancel(node, keys[:2])
    turn = iter([keys[2:4], keys[4:5]])
    read = PrefetchedView._read_rows_of_ended

    async def reading(view: PrefetchedView, wanted: Callable[[], list[bytes]]) -> None:
        await cancel(node, next(turn, []))
        await read(view, wanted)

    monkeypatch.setattr(PrefetchedView, "_read_rows_of_ended", reading)
    await complete_windows(node.store, [FIRST])
    assert rowless(node, keys) == 0 and node.store.delay_files.drop_count(FIRST) == 5
    node.world.check(node)


def committing(node: SimNode, meanwhile: Callable[[], Awaitable[object]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Something happens between a cycle's decision and its commit."""
    assert node.master is not None
    committer = node.master.committer
    commit = committer.commit

    async def slow(batches: Any) -> Any:
        monkeypatch.undo()
        await meanwhile()
        return await commit(batches)

    monkeypatch.setattr(committer, "commit", slow)


async def test_a_window_that_is_loaded_before_a_cancel_is_committed_gives_its_rows(
    node: SimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(node, 0)[:3]
    before = await states(node, keys)
    node.world.now = FIRST - 60_000
    committing(node, node.delay_files.step, monkeypatch)
    assert await cancel(node, keys) == [Answer.OK] * 3
    assert not node.store.delay_files.covers(keys[0])
    assert rowless(node, keys) == 0
    assert [state and (state.status, state.labels) for state in await states(node, keys)] == [
        ("cancelled", state.labels) for state in before if state
    ]
    node.world.check(node)


async def test_a_file_that_is_rewritten_before_a_cancel_is_committed_has_the_rows(
    node: SimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(node, 0)
    await cancel(node, keys[: COUNT // 2])
    committing(node, node.delay_files.step, monkeypatch)
    assert await cancel(node, keys[-3:]) == [Answer.OK] * 3
    assert node.store.delay_files.rows(FIRST) == COUNT // 2
    assert (rowless(node, keys), node.store.delay_files.rowless(FIRST)) == (3, 3)
    assert [state and state.status for state in await states(node, keys[-3:])] == ["cancelled"] * 3
    node.world.check(node)


async def test_a_cancel_and_a_move_of_one_message_in_one_batch(node: SimNode) -> None:
    one, two, three = keys_of(node, 0)[:3]
    await node.world.produce([
        Change(CANCEL, one, 0), Change(MOVE, one, FIRST + 9), Change(MOVE, two, FIRST + 9), Change(CANCEL, two, 0),
        Change(MOVE, three, FIRST + 2 * WINDOW_MS),
    ])  # fmt: skip
    await node.world.tick(node)
    assert list(node.replica.entry.answers.values())[-5:] == [
        Answer.OK, Answer.CANCELLED_BEFORE, Answer.OK, Answer.OK, Answer.OK
    ]  # fmt: skip
    node.world.check(node)


async def test_a_message_that_was_moved_and_sealed_again_keeps_its_first_id(node: SimNode) -> None:
    world, keys = node.world, keys_of(node, 0)[:5]
    await world.produce([Change(MOVE, key, FIRST + 2 * WINDOW_MS + n) for n, key in enumerate(keys)])
    later = FIRST + 2 * WINDOW_MS
    await world.produce([Draft(topic="one", payload=b"", due=later + n) for n in range(COUNT)])
    await world.tick(node)
    assert await node.delay_files.step()
    assert await cancel(node, keys) == [Answer.OK] * 5
    assert node.store.delay_files.rowless(later) == 5
    world.check(node)
    for _ in purge_before(node.store, 0, world.now + 1):
        pass
    assert len(list(node.store.each(ENDED))) == len(list(node.store.each(MOVED))) == 5, "not while it was not read"
    await complete_windows(node.store, [later])
    for _ in purge_before(node.store, 0, world.now + 1):
        pass
    for kind in (ENDED, ENDED_IN, MOVED):
        assert not list(node.store.each(kind))
    assert len(list(node.store.each(NAME))) == 2 * COUNT - 5, "its name is free"


async def test_a_damaged_file_is_reported_where_its_rows_are_wanted(node: SimNode) -> None:
    keys = keys_of(node, 0)[:2]
    await cancel(node, keys)
    (path,) = (node.path / FOLDER / str(FIRST)).glob("*.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    node.store.delay_files.reader.forget(node.store.delay_files.all())
    lost: list[Exception] = []
    with pytest.raises(Exception, match="damaged"):
        await reads_of(node, lost).state(keys[0])
    assert len(lost) == 1
    with pytest.raises(DamagedFile):
        await complete_windows(node.store, [FIRST])


async def test_books_that_differ_stop_it(node: SimNode) -> None:
    node.store.delay_files._rowless[FIRST] += 1
    with pytest.raises(CorruptStore, match="there are none"):
        await complete_windows(node.store, [FIRST])
    with pytest.raises(RuntimeError, match="would lose"):
        commit_load(node.store, FIRST, SimpleNamespace(dropped=set()), again=False)  # type: ignore[arg-type]


async def test_a_copy_for_a_peer_has_them(node: SimNode, tmp_path: Path) -> None:
    keys = keys_of(node, 0)[:3]
    await cancel(node, keys)
    make_checkpoint(node.store, tmp_path / "copy")
    await complete_windows(node.store, [FIRST])
    copy = ShardStore(tmp_path / "copy", node.world.memory, node.world.ids)
    assert copy.delay_files.rowless(FIRST) == 3
    await complete_windows(copy, [FIRST])
    assert copy.endings(keys) == node.store.endings(keys)
    copy.close()


async def test_rows_that_come_twice_are_counted_once(node: SimNode) -> None:
    keys = keys_of(node, 0)[:3]
    await cancel(node, keys)
    assert await CompletionPass(node.store, [FIRST]).step()
    (ended,) = node.store.endings(keys[:1])
    await cancel(node, keys_of(node, 0)[3:5])
    assert ended is not None
    node.store.complete_endings({keys[0]: b"", keys_of(node, 0)[9]: b""})
    assert node.store.endings(keys[:1]) == [ended]
    assert node.store.delay_files.rowless(FIRST) == 2
    node.world.check(node)


async def test_a_file_that_is_gone_leaves_no_count(node: SimNode) -> None:
    await cancel(node, keys_of(node, 0))
    assert await node.delay_files.step()
    assert not list(node.store.each(ROWLESS_COUNT)) and not list(node.store.each(DROPPED))


async def test_endings_are_completed_in_parts(node: SimNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "_PART", 3)
    await cancel(node, [*keys_of(node, 0)[:7], *keys_of(node, 1)[:2]])
    counts = []
    while await node.delay_files.complete_some():
        counts.append(node.store.delay_files.rowless_counts().total())
    assert counts == [6, 3, 2, 0]
    node.world.check(node)


async def test_a_completion_reads_each_mark_once_and_meets_those_made_behind_it(
    node: SimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_PART", 3)
    keys = keys_of(node, 0)
    await cancel(node, keys[4:])
    read_rows, read_marks, parts, marks = PrefetchedView._read_rows_of_ended, node.store.range, 0, 0

    async def reading(view: PrefetchedView, missing: Callable[[], list[bytes]]) -> None:
        nonlocal parts
        parts += 1
        if parts == 3:
            await cancel(node, keys[:4])
        await read_rows(view, missing)

    def counting(start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        nonlocal marks
        for row in read_marks(start, end):
            marks += 1
            yield row

    monkeypatch.setattr(PrefetchedView, "_read_rows_of_ended", reading)
    monkeypatch.setattr(node.store, "range", counting)
    await complete_windows(node.store, [FIRST])
    assert rowless(node, keys) == 0
    assert parts > 3 and marks <= len(keys)
    node.world.check(node)


def test_completion_waits_until_no_more_come_but_not_for_ever() -> None:
    timer = CompletionTimer(10)
    assert [timer.is_time(count, at) for count, at in ((0, 0), (5, 100), (9, 105), (9, 114), (9, 115))] == [
        False, False, False, False, True
    ]  # fmt: skip
    assert timer.is_time(3, 116), "the rest follows"
    assert not timer.is_time(0, 117)
    assert not timer.is_time(1, 200)
    assert [timer.is_time(n, 200 + n) for n in range(2, 61)] == [False] * 58 + [True]
