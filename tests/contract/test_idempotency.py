"""What every store of idempotency keys has to do. Time is the caller's: nothing here waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq.client.idempotency.base import Done, Fresh, InDoubt, Running, Store
from duemq.client.idempotency.states import KeyRow
from duemq.model.errors import Unavailable
from tests.contract.idempotency_plugs import PLUGS, opened

pytestmark = pytest.mark.anyio

T0 = 1_800_000_000_000
LEASE, KEEP = 60_000, 3_600_000
KEY = b"scope\0\xff key"


@pytest.fixture(params=PLUGS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    url = request.getfixturevalue("redis_url") if request.param == "redis" else ""
    store = await opened(request.param, tmp_path, url)
    yield store
    await store.close()


async def begin(
    store: Store, owner: str = "a", at: int = 0, key: bytes = KEY, once: bool = False, over: str = ""
) -> object:
    return await store.begin(key, owner, T0 + at, LEASE, KEEP, once, over)


async def test_what_is_done_is_not_begun_again_and_gives_its_result(store: Store) -> None:
    assert await begin(store) == Fresh()
    assert await store.finish(KEY, "a", b'{"x":1}', T0 + 5, KEEP)
    assert await begin(store, "b", 10) == Done(b'{"x":1}')
    assert await begin(store, "b", 10, once=True) == Done(b'{"x":1}')
    assert await begin(store, "b", LEASE + 10) == Done(b'{"x":1}'), "its lease has nothing to say any more"


async def test_an_empty_result_is_a_result(store: Store) -> None:
    await begin(store)
    assert await store.finish(KEY, "a", b"", T0, KEEP)
    assert await begin(store, "b") == Done(b"")


async def test_who_comes_while_it_runs_is_told_by_whom_and_until_when(store: Store) -> None:
    await begin(store)
    for once in (False, True):
        assert await begin(store, "b", LEASE - 1, once=once) == Running("a", T0, T0 + LEASE)


async def test_after_its_lease_it_is_begun_again_and_the_first_cannot_finish(store: Store) -> None:
    await begin(store)
    assert await begin(store, "b", LEASE) == Fresh()
    assert not await store.finish(KEY, "a", b"a", T0 + LEASE, KEEP)
    assert not await store.release(KEY, "a")
    assert await begin(store, "c", 2 * LEASE - 1) == Running("b", T0 + LEASE, T0 + 2 * LEASE)
    assert await store.finish(KEY, "b", b"b", T0 + 2 * LEASE - 1, KEEP)
    assert await begin(store, "c", 2 * LEASE) == Done(b"b")


async def test_at_most_once_it_is_not_begun_again(store: Store) -> None:
    await begin(store, once=True)
    for _ in range(2):
        with pytest.raises(InDoubt, match="begun by a at 1800000000000"):
            await begin(store, "b", LEASE, once=True)
    assert await store.finish(KEY, "a", b"late", T0 + LEASE, KEEP), "slow, not dead"
    assert await begin(store, "b", LEASE, once=True) == Done(b"late")


async def test_what_is_released_may_be_begun_again(store: Store) -> None:
    await begin(store, once=True)
    assert not await store.release(KEY, "b")
    assert await store.release(KEY, "a")
    assert not await store.release(KEY, "a")
    assert not await store.finish(KEY, "a", b"", T0, KEEP)
    assert await begin(store, "b", 1, once=True) == Fresh()


async def test_what_is_done_cannot_be_released(store: Store) -> None:
    await begin(store)
    await store.finish(KEY, "a", b"1", T0, KEEP)
    assert not await store.release(KEY, "a")
    assert await begin(store, "b") == Done(b"1")


async def test_repeats_of_one_owner_change_nothing(store: Store) -> None:
    """Their answers got lost on the way."""
    assert await begin(store, once=True) == Fresh()
    assert await begin(store, once=True) == Fresh()
    assert await begin(store, at=LEASE, once=True) == Fresh()
    assert await store.finish(KEY, "a", b"1", T0, KEEP)
    assert await store.finish(KEY, "a", b"2", T0, KEEP)
    assert await begin(store) == Done(b"1")


@pytest.mark.parametrize("once", [False, True])
async def test_who_knows_that_an_attempt_is_over_takes_it_on(store: Store, once: bool) -> None:
    """Its release was not answered: it may come yet, and takes nothing from the next attempt."""
    for number, at in enumerate((5, LEASE)):
        key = b"%d" % number
        await begin(store, key=key, once=once)
        assert await begin(store, "b", at, key, once, over="a") == Fresh()
        assert not await store.release(key, "a") and not await store.finish(key, "a", b"a", T0 + at, KEEP)
        assert await begin(store, "c", at, key, once, over="a") == Running("b", T0 + at, T0 + at + LEASE)
        assert await begin(store, "c", at, key, once) == Running("b", T0 + at, T0 + at + LEASE)
        assert await store.finish(key, "b", b"b", T0 + at, KEEP)
        assert await begin(store, "d", at, key, once, over="b") == Done(b"b"), "done is done"
    assert await begin(store, "b", key=b"new", once=once, over="a") == Fresh()


async def test_a_store_says_whether_others_use_it(store: Store, request: pytest.FixtureRequest) -> None:
    assert store.shared == ("redis" in request.node.name)


async def test_a_closed_store_is_unavailable(store: Store, request: pytest.FixtureRequest) -> None:
    await asyncio.gather(store.close(), store.close())
    if "memory" in request.node.name:
        return  # it has nothing to close
    calls = store.begin(KEY, "a", T0, LEASE, KEEP), store.finish(KEY, "a", b"", T0, KEEP), store.release(KEY, "a")
    for call in calls:
        with pytest.raises(Unavailable, match="closed"):
            await call


async def test_nobody_finishes_or_releases_what_was_never_begun(store: Store) -> None:
    assert not await store.finish(KEY, "a", b"", T0, KEEP)
    assert not await store.release(KEY, "a")
    assert await begin(store) == Fresh()


async def test_results_are_kept_as_long_as_was_said(store: Store) -> None:
    await begin(store)
    await store.finish(KEY, "a", b"1", T0 + 7, KEEP)
    assert await begin(store, "b", KEEP + 6) == Done(b"1")
    assert await begin(store, "b", KEEP + 7) == Fresh()
    assert isinstance(await begin(store, "c", KEEP + 7), Running), "the old result is gone"


async def test_that_it_was_begun_is_remembered_for_as_long_after_its_lease(store: Store) -> None:
    await begin(store, once=True)
    with pytest.raises(InDoubt):
        await begin(store, "b", LEASE + KEEP - 1, once=True)
    assert not await store.finish(KEY, "a", b"", T0 + LEASE + KEEP, KEEP)
    assert await begin(store, "b", LEASE + KEEP, once=True) == Fresh()


async def test_expiry_takes_what_is_over_and_nothing_else(store: Store) -> None:
    for number in range(50):
        await begin(store, key=b"%d" % number)
        await store.finish(b"%d" % number, "a", b"1", T0, KEEP * (1 + number % 2))
    gone = await store.expire(T0 + KEEP + 60_000)
    assert gone in (25, 0), "0 where the server does it by itself"
    for number in range(50):
        found = await begin(store, "b", KEEP + 60_000, key=b"%d" % number)
        assert found == (Done(b"1") if number % 2 else Fresh())


async def test_keys_do_not_touch_each_other(store: Store) -> None:
    keys = [b"a", b"a\0", b"\0a", b"aa", b"", b"\xff" * 1_024]
    assert await asyncio.gather(*(begin(store, f"{number}", key=key) for number, key in enumerate(keys))) == [
        Fresh()
    ] * len(keys)
    for number, key in enumerate(keys):
        assert await store.finish(key, f"{number}", b"%d" % number, T0, KEEP)
    assert [await begin(store, "x", key=key) for key in keys] == [Done(b"%d" % n) for n in range(len(keys))]


@pytest.mark.parametrize("count", [2, 200])
async def test_of_many_at_once_one_begins(store: Store, count: int) -> None:
    found = await asyncio.gather(*(begin(store, f"{number}", once=True) for number in range(count)))
    assert found.count(Fresh()) == 1
    assert sum(isinstance(each, Running) for each in found) == count - 1


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("begin", "once", "finish", "release")),
        st.sampled_from("ab"),
        st.sampled_from((b"k", b"l")),
        st.integers(0, 40_000),
    ),
    max_size=25,
)


class Oracle:
    """The rules once more, written as a list of cases and not as a table."""

    def __init__(self) -> None:
        self._rows: dict[bytes, KeyRow] = {}

    def carry_out(self, step: str, key: bytes, owner: str, now: int, lease: int, keep: int, result: bytes) -> object:
        row = self._rows.get(key)
        if row is not None and now >= row.expires_ms:
            row = None
        mine = row is not None and row.owner == owner
        if step in ("begin", "once"):
            if row is not None and row.result is not None:
                return Done(row.result)
            if row is not None and not mine and now < row.until_ms:
                return Running(row.owner, row.since_ms, row.until_ms)
            if row is not None and not mine and step == "once":
                return InDoubt
            self._rows[key] = KeyRow(owner, now, now + lease, now + lease + keep)
            return Fresh()
        if row is None or not mine:
            return False
        if step == "release":
            if row.result is None:
                del self._rows[key]
            return row.result is None
        if row.result is None:
            self._rows[key] = KeyRow(owner, row.since_ms, row.until_ms, now + keep, result)
        return True


@pytest.mark.parametrize("plug", PLUGS)
def test_any_history_has_the_answers_of_the_rules(
    plug: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path_factory.mktemp(plug)
    url = request.getfixturevalue("redis_url") if plug == "redis" else ""

    async def play(steps: list[tuple[str, str, bytes, int]], folder: Path) -> None:
        store, oracle, now = await opened(plug, folder, url), Oracle(), T0
        try:
            for number, (step, owner, key, pause) in enumerate(steps):
                now += pause
                expected = oracle.carry_out(step, key, owner, now, 30_000, 50_000, b"%d" % number)
                try:
                    found: object
                    if step in ("begin", "once"):
                        found = await store.begin(key, owner, now, 30_000, 50_000, step == "once")
                    elif step == "finish":
                        found = await store.finish(key, owner, b"%d" % number, now, 50_000)
                    else:
                        found = await store.release(key, owner)
                except InDoubt:
                    found = InDoubt
                if step == "release" and expected is False and found is True:
                    continue  # of what is forgotten, which the store may still have
                assert found == expected
        finally:
            await store.close()

    numbers = iter(range(1_000_000))

    @settings(max_examples=60, deadline=None)
    @given(STEPS)
    def histories(steps: list[tuple[str, str, bytes, int]]) -> None:
        asyncio.run(play(steps, folder / str(next(numbers))))

    histories()
