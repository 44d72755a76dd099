"""A handler pauses its consumer: one message is tried again, all others wait, and none of them is lost or counted."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from duemq.client.consumer.message import Message
from duemq.client.consumer.retry.policy import Pause
from duemq.client.consumer.work.offset_tracker import OffsetTracker
from duemq.client.consumer.work.work import Route
from duemq.client.consumer.work.worker_pool import WorkerPool
from tests.support.patience import WITHIN_S
from tests.unit.consumer.test_worker_pool import Owner, running, works

pytestmark = pytest.mark.anyio

SOON_S = 0.001


class Store:
    """What handlers need. `begun`: by which messages it was asked for, in their order."""

    def __init__(self, here: bool = False) -> None:
        self.here, self.begun = here, list[int]()

    async def handle(self, message: Message) -> None:
        self.begun.append(message.record.offset)
        if not self.here:
            raise Pause("the store is away", after_s=SOON_S)

    async def until_asked(self, times: int) -> None:
        async with asyncio.timeout(WITHIN_S):
            while len(self.begun) < times:  # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_one_message_is_tried_until_it_gets_through() -> None:
    owner, store, tracker = Owner(), Store(), OffsetTracker(0)
    pool = WorkerPool(owner, 1, None)
    async with running(pool):
        pool.put(works(Route(store.handle, 60), tracker, 3))
        await store.until_asked(4)
        assert pool.paused
        pool.put(works(Route(store.handle, 60), tracker, 2, first=3))
        await store.until_asked(6)
        assert store.begun == [0] * len(store.begun) and owner.ends == []
        store.here, tries = True, len(store.begun)
        await owner.until(5)
    assert store.begun[tries:] == [0, 1, 2, 3, 4]
    assert owner.ends == [("done", offset) for offset in range(5)]
    waits = owner.pauses[:-1]
    assert owner.pauses[-1] == 0 and waits == pytest.approx([SOON_S * 1.5**number for number in range(len(waits))])
    assert not pool.paused


async def test_all_that_paused_begin_before_the_others_and_a_failure_ends_it_too() -> None:
    owner, tracker, begun, here = Owner(), OffsetTracker(0), list[int](), False
    busy = asyncio.Barrier(3)

    async def handle(message: Message) -> None:
        begun.append(message.record.offset)
        if not here:
            if len(begun) <= 3:
                await busy.wait()
            raise Pause(after_s=SOON_S)
        if message.record.offset == begun[3]:
            raise ValueError("it is here, and refuses this one")

    pool = WorkerPool(owner, 3, None)
    async with running(pool):
        pool.put(works(Route(handle, 60), tracker, 5))
        async with asyncio.timeout(300):
            while len(begun) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0)
        here, tries = True, len(begun)
        await owner.until(5)
    assert begun[:3] == [0, 1, 2] and len(set(begun[3:tries])) == 1
    assert sorted(begun[tries:]) == [0, 1, 2, 3, 4] and begun[tries] == begun[3]
    assert set(begun[tries : tries + 3]) == {0, 1, 2}
    assert Counter(end for end, _ in owner.ends) == {"failed": 1, "done": 4}


async def test_what_runs_when_a_pause_begins_ends_as_ever() -> None:
    owner, gate, tracker = Owner(), asyncio.Event(), OffsetTracker(0)

    async def handle(message: Message) -> None:
        if message.record.offset == 0:
            await gate.wait()
        elif not gate.is_set():
            raise Pause(after_s=SOON_S)

    pool = WorkerPool(owner, 2, None)
    async with running(pool):
        pool.put(works(Route(handle, 60), tracker, 3))
        async with asyncio.timeout(300):
            while len(owner.pauses) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0)
        gate.set()
        await owner.until(3)
    assert sorted(owner.ends) == [("done", 0), ("done", 1), ("done", 2)]


async def test_the_order_of_a_key_outlasts_a_pause() -> None:
    owner, store, tracker = Owner(), Store(), OffsetTracker(0)
    pool = WorkerPool(owner, 4, 1)
    async with running(pool):
        pool.put(works(Route(store.handle, 60), tracker, 3, "a"))
        pool.put(works(Route(store.handle, 60), tracker, 3, "b", 100))
        await store.until_asked(5)
        store.here = True
        await owner.until(6)
    for first in (0, 100):
        assert [offset for _, offset in owner.ends if first <= offset < first + 3] == list(range(first, first + 3))
    assert pool.keys == {}


async def test_what_was_to_be_tried_again_in_place_waits_as_well() -> None:
    owner, store, tracker = Owner(again=SOON_S), Store(), OffsetTracker(0)

    async def handle(message: Message) -> None:
        if message.record.offset == 0 and not store.here:
            raise ValueError("later")
        await store.handle(message)

    pool = WorkerPool(owner, 1, 1)
    async with running(pool):
        pool.put(works(Route(handle, 60), tracker, 1, "a"))
        pool.put(works(Route(handle, 60), tracker, 1, "b", 1))
        await store.until_asked(5)
        assert owner.ends == [("failed", 0)]
        store.here = True
        await owner.until(3)
    assert owner.ends == [("failed", 0), ("done", 1), ("done", 0)]


@pytest.mark.parametrize("after_s", [SOON_S, 60.0], ids=["tried", "waiting"])
async def test_a_stop_lets_go_of_all_of_it(after_s: float) -> None:
    owner, tracker, begun = Owner(), OffsetTracker(0), 0

    async def handle(message: Message) -> None:
        nonlocal begun
        begun += 1
        raise Pause(after_s=after_s)

    pool = WorkerPool(owner, 1, 1)
    async with running(pool):
        pool.put(works(Route(handle, 60), tracker, 2, "a"))
        pool.put(works(Route(handle, 60), tracker, 2, "b", 100))
        async with asyncio.timeout(300):
            while begun < (3 if after_s == SOON_S else 1):  # noqa: ASYNC110
                await asyncio.sleep(0)
        pool.release([tracker])
        assert await pool.finish([tracker], 60)
        await owner.until(4)
    assert sorted(owner.ends) == [("released", offset) for offset in (0, 1, 100, 101)]
    assert pool.keys == {}


async def test_a_partition_that_goes_takes_along_the_message_that_paused() -> None:
    """Somebody else is tried then, so that the pause does not last for ever."""
    owner, going, staying, store = Owner(), OffsetTracker(0), OffsetTracker(0), Store()
    pool = WorkerPool(owner, 1, None)
    async with running(pool):
        pool.put(works(Route(store.handle, 60), going, 1))
        await store.until_asked(1)
        pool.put(works(Route(store.handle, 60), staying, 2, first=100))
        pool.release([going])
        await store.until_asked(4)
        store.here = True
        await owner.until(3)
    assert owner.ends == [("released", 0), ("done", 100), ("done", 101)]


async def test_what_pauses_when_its_partition_has_gone_is_let_go() -> None:
    owner, tracker, busy, gate = Owner(), OffsetTracker(0), asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        busy.set()
        await gate.wait()
        raise Pause(after_s=60)

    pool = WorkerPool(owner, 1, None)
    async with running(pool):
        pool.put(works(Route(handle, 60), tracker, 1))
        await busy.wait()
        pool.release([tracker])
        gate.set()
        await owner.until(1)
    assert owner.ends == [("released", 0)] and not pool.paused
