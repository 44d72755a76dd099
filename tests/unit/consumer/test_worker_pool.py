"""Handlers in a pool: at once, by key, with time-outs, and what a partition that goes away takes along."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from duemq.client.consumer.message import Message
from duemq.client.consumer.retry.policy import Pause
from duemq.client.consumer.work.offset_tracker import OffsetTracker
from duemq.client.consumer.work.work import Route, Work
from duemq.client.consumer.work.worker_pool import WorkerPool
from tests.support.patience import WITHIN_S
from tests.unit.consumer.test_consumer_values import Plain

pytestmark = pytest.mark.anyio


class Owner:
    """Notes what became of each message, by its offset; `again`: s until a failed one is tried again."""

    def __init__(self, again: float | None = None) -> None:
        self.ends: list[tuple[str, int]] = []
        self.errors: list[str] = []
        self.pauses: list[float] = []  # 0 where one ended
        self.again = again

    def done(self, work: Work) -> None:
        self.ends.append(("done", work.message.record.offset))

    async def failed(self, work: Work, error: BaseException) -> float | None:
        self.errors.append(str(error))
        self.ends.append(("failed", work.message.record.offset))
        return self.again

    def released(self, work: Work) -> None:
        self.ends.append(("released", work.message.record.offset))

    def set_aside(self, work: Work) -> None:
        work.tracker.aside.add(work.offset, work.key)

    def pausing(self, work: Work, error: Pause, wait_s: float) -> None:
        self.pauses.append(wait_s)

    def resumed(self) -> None:
        self.pauses.append(0.0)

    def pull_again(self) -> None: ...

    async def until(self, count: int) -> None:
        async with asyncio.timeout(WITHIN_S):
            while len(self.ends) < count:  # noqa: ASYNC110
                await asyncio.sleep(0)


@asynccontextmanager
async def running(pool: WorkerPool) -> AsyncIterator[None]:
    task = asyncio.create_task(pool.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task.exception()


def works(route: Route, tracker: OffsetTracker, count: int, key: object = None, first: int = 0) -> list[Work]:
    return [
        Work(Message(Plain(offset=offset)), route, tracker, offset, 0, key) for offset in range(first, first + count)
    ]


async def test_so_many_at_once_and_no_more() -> None:
    owner, now, most, gate = Owner(), 0, 0, asyncio.Event()

    async def handle(message: Message) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await gate.wait()
        now -= 1

    pool = WorkerPool(owner, 3, None)
    async with running(pool):
        pool.put(works(Route(handle, 60), OffsetTracker(0), 10))
        while now < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        gate.set()
        await owner.until(10)
    assert most == 3 and sorted(owner.ends) == [("done", offset) for offset in range(10)]


async def test_one_of_a_key_at_once_in_their_order() -> None:
    owner, order = Owner(), list[int]()

    async def handle(message: Message) -> None:
        order.append(message.record.offset)
        await asyncio.sleep(0.001 * (message.record.offset % 3))
        order.append(message.record.offset)

    pool, tracker = WorkerPool(owner, 8, 1), OffsetTracker(0)
    async with running(pool):
        pool.put([*works(Route(handle, 60), tracker, 5, "a"), *works(Route(handle, 60), tracker, 5, "b", 100)])
        await owner.until(10)
    for first in (0, 100):
        assert [each for each in order if first <= each < first + 100] == [
            each for offset in range(first, first + 5) for each in (offset, offset)
        ]
    assert pool.keys == {}


async def test_a_failed_one_keeps_its_key_and_only_that() -> None:
    owner, order = Owner(0.02), list[str]()

    async def handle(message: Message) -> None:
        order.append(str(message.record.offset))
        if message.record.offset == 0 and order.count("0") < 3:
            raise ValueError("not yet")

    pool, tracker = WorkerPool(owner, 2, 1), OffsetTracker(0)
    async with running(pool):
        pool.put([*works(Route(handle, 60), tracker, 3, "a"), *works(Route(handle, 60), tracker, 2, "b", 100)])
        await owner.until(7)
    assert order == ["0", "100", "101", "0", "0", "1", "2"]


@pytest.mark.parametrize("stubborn", [False, True])
async def test_what_takes_too_long_is_stopped_and_its_lane_goes_on(stubborn: bool) -> None:
    owner = Owner()

    async def handle(message: Message) -> None:
        if message.record.offset == 0:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if not stubborn:
                    raise

    pool = WorkerPool(owner, 1, None)
    async with running(pool):
        pool.put(works(Route(handle, 0.05), OffsetTracker(0), 3))
        await owner.until(3)
    # One that finishes although it is told to stop has done its work.
    assert owner.ends == [("done" if stubborn else "failed", 0), ("done", 1), ("done", 2)]
    assert owner.errors == ([] if stubborn else ["the handler took longer than 0.05 s"])


async def test_a_lane_that_stopped_a_handler_is_as_new() -> None:
    """What asyncio's own time-outs and task groups in the next handler go by."""
    owner, cancels = Owner(), list[int]()

    async def handle(message: Message) -> None:
        if message.record.offset == 0:
            await asyncio.sleep(60)
        task = asyncio.current_task()
        assert task is not None
        cancels.append(task.cancelling())

    pool = WorkerPool(owner, 1, None)
    async with running(pool):
        pool.put(works(Route(handle, 0.05), OffsetTracker(0), 2))
        await owner.until(2)
    assert cancels == [0]


async def test_a_handler_may_have_time_outs_of_its_own() -> None:
    owner = Owner()

    async def handle(message: Message) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    pool = WorkerPool(owner, 1, None)
    async with running(pool):
        pool.put(works(Route(handle, 60), OffsetTracker(0), 2))
        await owner.until(2)
    assert owner.ends == [("failed", 0), ("failed", 1)]


async def test_a_partition_that_goes_takes_along_what_was_not_begun() -> None:
    owner, gate = Owner(60.0), asyncio.Event()

    async def handle(message: Message) -> None:
        if message.record.offset == 0:
            await gate.wait()
        if message.record.offset == 100:
            raise ValueError("comes again in a minute")

    going, staying = OffsetTracker(0), OffsetTracker(0)
    pool = WorkerPool(owner, 2, 1)
    async with running(pool):
        pool.put(works(Route(handle, 60), going, 3, "a"))
        pool.put(works(Route(handle, 60), going, 2, "b", 100))
        await owner.until(1)  # 100 failed and waits; 0 is in its handler; 1, 2 and 101 wait for their keys
        pool.put(works(Route(handle, 60), staying, 1, "b", 200))
        pool.release([going])
        await owner.until(6)
        assert sorted(owner.ends) == sorted(
            [("failed", 100), *(("released", offset) for offset in (1, 2, 100, 101)), ("done", 200)]
        )
        assert not await pool.finish([going], 0.01)
        gate.set()
        assert await pool.finish([going], 10)
        pool.put(works(Route(handle, 60), going, 1, "c", 300))
        await owner.until(8)
    assert ("done", 0) in owner.ends and ("released", 300) in owner.ends
    assert pool.keys == {}


async def test_what_a_handler_waits_for_may_be_cancelled() -> None:
    """A closed connection, a future of another task: it is a failure, and the worker goes on."""
    owner = Owner()

    async def handle(message: Message) -> None:
        if message.record.offset == 1:
            inner = asyncio.create_task(asyncio.sleep(60))
            inner.cancel()
            await inner

    pool = WorkerPool(owner, 1, None)
    async with running(pool):
        pool.put(works(Route(handle, 60), OffsetTracker(0), 3))
        await owner.until(3)
    assert owner.ends == [("done", 0), ("failed", 1), ("done", 2)]
    assert owner.errors == ["the handler awaited something that was cancelled"]


@pytest.mark.parametrize("swallows", [False, True])
async def test_a_handler_that_cancels_itself_hurts_nobody_else(swallows: bool) -> None:
    owner, cancels = Owner(), list[int]()

    async def handle(message: Message) -> None:
        task = asyncio.current_task()
        assert task is not None
        if message.record.offset == 0:
            task.cancel()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if not swallows:
                    raise
        cancels.append(task.cancelling())

    pool = WorkerPool(owner, 1, None)
    async with running(pool):
        pool.put(works(Route(handle, 60), OffsetTracker(0), 2))
        await owner.until(2)
        pool.put(works(Route(handle, 60), OffsetTracker(0), 1, first=2))  # after it rested
        await owner.until(3)
    assert [end for end, _ in owner.ends] == ["done" if swallows else "failed", "done", "done"]
    if not swallows:
        assert cancels == [0, 0]


class Unusual(BaseException):
    """No Exception, as the time-outs of some libraries are."""


async def test_whatever_a_handler_raises_is_a_failure() -> None:
    owner = Owner()

    async def handle(message: Message) -> None:
        raise Unusual("boom")

    pool = WorkerPool(owner, 1, None)
    async with running(pool):
        pool.put(works(Route(handle, 60), OffsetTracker(0), 2))
        await owner.until(2)
    assert owner.ends == [("failed", 0), ("failed", 1)]


@pytest.mark.parametrize("number", [0, -1], ids=["a worker", "the time-outs"])
async def test_a_task_that_somebody_else_cancels_ends_the_consumer(number: int) -> None:
    pool = WorkerPool(Owner(), 2, None)
    whole = asyncio.create_task(pool.run())
    name = "time-outs" if number else "worker-0"
    while not (found := [task for task in asyncio.all_tasks() if task.get_name() == name]):  # noqa: ASYNC110
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # it runs
    found[0].cancel()
    with pytest.raises(ExceptionGroup, match="unhandled") as ended:
        await whole
    assert "not by the consumer" in repr(ended.value.exceptions)


@pytest.mark.parametrize(
    ("ending", "expected"),
    [("raises", "released"), ("fails", "released"), ("swallows", "done"), ("hesitates", "released")],
)
@pytest.mark.parametrize("late", [False, True])
async def test_a_stop_ends_a_lane_whatever_its_handler_makes_of_it(ending: str, expected: str, late: bool) -> None:
    """Also while the handler cleans up after a time-out; what fails then is not sent back, for that may take long."""
    owner, busy, cleaning = Owner(), asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        busy.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cleaning.set()
            if late or ending == "hesitates":
                try:
                    await asyncio.sleep(60 if late else 0.01)
                except asyncio.CancelledError:
                    if ending == "hesitates":
                        await asyncio.sleep(0.01)
                        raise
                    if ending == "raises":
                        raise
            if ending == "fails":
                raise ValueError("what I had is gone") from None
            if ending in ("raises", "hesitates"):
                raise

    pool = WorkerPool(owner, 2, None)
    whole = asyncio.create_task(pool.run())
    pool.put(works(Route(handle, 0.01 if late else 60), OffsetTracker(0), 1))
    await (cleaning if late else busy).wait()
    whole.cancel()
    async with asyncio.timeout(WITHIN_S):
        await asyncio.wait([whole])
    assert whole.cancelled() and owner.ends == [(expected, 0)] and owner.errors == []


async def test_a_stop_lets_go_of_what_is_just_sent_back() -> None:
    owner, sending = Owner(), asyncio.Event()

    async def failed(work: Work, error: BaseException) -> float | None:
        sending.set()
        await asyncio.sleep(60)  # Kafka is away
        return None

    async def handle(message: Message) -> None:
        raise ValueError("boom")

    owner.failed = failed  # type: ignore[method-assign]
    pool = WorkerPool(owner, 1, None)
    async with running(pool):
        pool.put(works(Route(handle, 60), OffsetTracker(0), 1))
        await sending.wait()
    assert owner.ends == [("released", 0)]


async def test_the_time_of_a_message_that_waits_for_a_thread_does_not_count() -> None:
    owner, looked = Owner(), 0

    def queued(message: Message) -> bool:
        nonlocal looked
        looked += 1
        return looked < 5

    async def handle(message: Message) -> None:
        await asyncio.sleep(60)

    pool = WorkerPool(owner, 1, None)
    async with running(pool):
        pool.put(works(Route(handle, 1e-6, queued), OffsetTracker(0), 1))
        await owner.until(1)
    assert looked == 5 and owner.ends == [("failed", 0)]


async def test_what_waits_for_its_turn_is_let_go_with_its_partition() -> None:
    """It has not begun: it is neither done nor failed."""
    owner, turn, waiting, going, staying = Owner(), asyncio.Event(), set[int](), OffsetTracker(0), OffsetTracker(0)

    async def handle(message: Message) -> None:
        waiting.add(message.record.offset)
        await turn.wait()
        waiting.remove(message.record.offset)

    pool = WorkerPool(owner, 3, 1)
    async with running(pool):
        route = Route(handle, 60, lambda message: message.record.offset in waiting)
        pool.put([*works(route, going, 2, "a"), *works(route, going, 1, "b", 100), *works(route, staying, 1, "c", 200)])
        while len(waiting) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        pool.release([going])
        assert await pool.finish([going], 10)
        assert sorted(owner.ends) == [("released", 0), ("released", 1), ("released", 100)]
        turn.set()
        await owner.until(4)
    assert owner.ends[-1] == ("done", 200) and pool.keys == {}
