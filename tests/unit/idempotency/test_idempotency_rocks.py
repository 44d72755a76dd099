"""What is RocksDB's own: restarts, expiry that leaves nothing, many keys to one sync, its folder and its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from threading import Event

import pytest
from rocksdict import Options, Rdict

from duemq.client.idempotency.base import Busy, Done, Fresh, InDoubt, Running
from duemq.client.idempotency.once import once
from duemq.client.idempotency.rocks import RocksStore
from duemq.model.errors import FolderRefused, Unavailable
from tests.support.consumer.idempotency_world import MINUTE, T0

pytestmark = pytest.mark.anyio


def rows(folder: Path) -> int:
    """Rows and entries of expiry, without the one of the version."""
    db = Rdict(str(folder), Options(raw_mode=True))
    try:
        return sum(1 for _ in db.keys()) - 1
    finally:
        db.close()


async def test_results_outlast_a_restart_and_running_work_does_not(tmp_path: Path) -> None:
    store = await RocksStore.open(tmp_path)
    for key in (b"done", b"running"):
        await store.begin(key, "a", T0, MINUTE, MINUTE)
    await store.finish(b"done", "a", b"1", T0, MINUTE)
    assert await store.begin(b"running", "b", T0 + 1, MINUTE, MINUTE) == Running("a", T0, T0 + MINUTE)
    await store.close()
    store = await RocksStore.open(tmp_path)
    assert await store.begin(b"done", "b", T0 + 1, MINUTE, MINUTE) == Done(b"1")
    with pytest.raises(InDoubt):
        await store.begin(b"running", "b", T0 + 1, MINUTE, MINUTE, True)
    assert await store.begin(b"running", "b", T0 + 1, MINUTE, MINUTE) == Fresh(), "nobody else can have it"
    assert isinstance(await store.begin(b"running", "c", T0 + 1, MINUTE, MINUTE), Running)
    await store.close()


@pytest.mark.parametrize("explicitly", [True, False])
async def test_expiry_leaves_nothing_behind(tmp_path: Path, explicitly: bool) -> None:
    """2,500 keys: more than are removed at once."""
    store = await RocksStore.open(tmp_path)

    async def use(number: int) -> None:
        key = b"%d" % number
        await store.begin(key, "a", T0, MINUTE, 2 * MINUTE)
        if number % 3 == 0:
            await store.finish(key, "a", b"1", T0, 5 * MINUTE)
        elif number % 3 == 1:
            await store.release(key, "a")

    await asyncio.gather(*map(use, range(2_500)))
    if explicitly:
        assert await store.expire(T0 + 4 * MINUTE) == 833, "those that nobody finished"
        assert await store.begin(b"0", "b", T0 + 5 * MINUTE - 1, MINUTE, MINUTE) == Done(b"1")
        assert await store.expire(T0 + 6 * MINUTE) == 834
        assert await store.expire(T0 + 60 * MINUTE) == 0
    else:
        for _ in range(20):  # each request takes a few along
            requests = (store.begin(b"last", "a", T0 + 60 * MINUTE, MINUTE, MINUTE) for _ in range(50))
            await asyncio.gather(*requests)
    await store.close()
    assert rows(tmp_path) == (0 if explicitly else 2)


async def test_what_is_begun_anew_is_not_removed_with_what_it_was(tmp_path: Path) -> None:
    store = await RocksStore.open(tmp_path)
    await store.begin(b"k", "a", T0, MINUTE, MINUTE)
    await store.finish(b"k", "a", b"1", T0 + MINUTE, 60 * MINUTE)
    assert await store.expire(T0 + 10 * MINUTE) == 0
    assert await store.begin(b"k", "b", T0 + 10 * MINUTE, MINUTE, MINUTE) == Done(b"1")
    assert await store.expire(T0 + 62 * MINUTE) == 1
    await store.close()
    assert rows(tmp_path) == 0


async def test_many_at_once_share_a_sync(tmp_path: Path) -> None:
    steps: Counter[str] = Counter()
    store = await RocksStore.open(tmp_path, lambda step: steps.update([step]))
    found = await asyncio.gather(*(store.begin(b"%d" % n, "a", T0, MINUTE, MINUTE) for n in range(1_000)))
    assert found == [Fresh()] * 1_000
    assert steps == {"before_write": 1, "after_write": 1, "after_sync": 1}
    assert isinstance(await store.begin(b"1", "b", T0, MINUTE, MINUTE), Running)
    assert steps["after_sync"] == 1, "what changes nothing needs no sync"
    await store.close()


async def test_a_thousand_tasks_of_two_handlers_do_fifty_keys_once_each(tmp_path: Path) -> None:
    """Handlers of one scope that do not know of each other, as in two processes: one may meet the other at work."""
    store, effects = await RocksStore.open(tmp_path), Counter[str]()

    async def work(key: str) -> str:
        effects[key] += 1
        await asyncio.sleep(0)
        return key

    handlers = [once(store, key=str, scope="tests", cached=cached)(work) for cached in (0, 10)]
    tasks = [(handlers[number % 3 % 2], str(number % 50)) for number in range(1_000)]
    found = await asyncio.gather(*(handler(key) for handler, key in tasks), return_exceptions=True)
    assert effects == {str(number): 1 for number in range(50)}
    assert all(isinstance(each, Busy) or each == key for (_, key), each in zip(tasks, found, strict=True))
    assert set(found) >= {str(number) for number in range(50)}
    await store.close()


async def test_closing_finishes_what_waits_and_refuses_what_comes(tmp_path: Path) -> None:
    store = await RocksStore.open(tmp_path)
    waiting = [asyncio.ensure_future(store.begin(b"%d" % n, "a", T0, MINUTE, MINUTE)) for n in range(10)]
    await asyncio.sleep(0)
    await store.close()
    assert await asyncio.gather(*waiting) == [Fresh()] * 10
    await store.close()
    with pytest.raises(Unavailable, match="closed"):
        await store.begin(b"k", "a", T0, MINUTE, MINUTE)


async def test_all_who_close_wait_for_the_end_also_behind_one_who_was_cancelled(tmp_path: Path) -> None:
    gate = Event()

    def fault(step: str) -> None:
        if step == "before_write":
            gate.wait()

    store = await RocksStore.open(tmp_path, fault)
    waiting = asyncio.ensure_future(store.begin(b"k", "a", T0, MINUTE, MINUTE))
    await asyncio.sleep(0)
    first, second = (asyncio.ensure_future(store.close()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not second.done()
    gate.set()
    await second
    assert await waiting == Fresh()
    store = await RocksStore.open(tmp_path)  # nobody has it open
    await store.close()


async def test_its_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    store = await RocksStore.open(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    await store.close()


async def test_a_caller_that_is_cancelled_disturbs_nobody(tmp_path: Path) -> None:
    store = await RocksStore.open(tmp_path)
    one, two = (asyncio.ensure_future(store.begin(key, "a", T0, MINUTE, MINUTE)) for key in (b"1", b"2"))
    await asyncio.sleep(0)
    one.cancel()
    assert await two == Fresh()
    await store.close()


async def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    store = await RocksStore.open(tmp_path / "used")
    with pytest.raises(FolderRefused, match="has it open"):
        await RocksStore.open(tmp_path / "used")
    await store.close()
    for name, key, value, said in (
        ("foreign", b"other", b"", "something else"),
        ("log", b"v", b"\0\1", "something else"),
        ("later", b"v", b"\0\2" + bytes(8), "layout 2"),
    ):
        db = Rdict(str(tmp_path / name), Options(raw_mode=True))
        db.put(key, value)
        db.close()
        with pytest.raises(FolderRefused, match=said):
            await RocksStore.open(tmp_path / name)
