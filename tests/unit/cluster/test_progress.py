"""Waiting for the answers of a shard."""

import asyncio
from itertools import count

import pytest

from duemq.cluster.shards.progress import Progress
from duemq.model.errors import Unavailable
from duemq.model.log.ledger import Answer, Entry

DELAY_FILE = 10**12


NUMBERS = count()  # of ledger entries


def entry(applied: int, **answers: Answer) -> Entry:
    return Entry(next(NUMBERS), applied, b"", 0, {int(at[1:]): answer for at, answer in answers.items()})


def cycle(number: int, base: int | None = None) -> Entry:
    """The entry of a cycle that answered the five commands from `5 * number` on."""
    answers = {5 * number + row: Answer.OK for row in range(5)}
    return Entry(number, 5 * number + 5, b"", 0, answers, base=base)


def test_those_whose_command_was_applied_go_on_and_the_others_wait() -> None:
    async def scenario() -> None:
        progress = Progress()
        waits = {offset: asyncio.create_task(progress.wait_until_applied(offset, 60)) for offset in (7, 3, 5, 9)}
        again = asyncio.create_task(progress.wait_until_applied(3, 60))
        await asyncio.sleep(0)
        assert progress.waiting == 5
        progress.publish(entry(6, _3=Answer.OK))
        assert await waits[3] and await again and await waits[5]
        answered = progress.answer(3)
        assert answered is not None and answered.answer is Answer.OK
        assert not waits[7].done() and not waits[9].done() and progress.waiting == 2
        progress.publish(entry(10))
        assert await waits[7] and await waits[9] and progress.waiting == 0
        assert await progress.wait_until_applied(9, 0)

    asyncio.run(scenario())


def test_those_who_waited_in_vain_leave_nothing() -> None:
    async def scenario() -> None:
        progress, offsets = Progress(), count(DELAY_FILE)
        stays = asyncio.create_task(progress.wait_until_applied(0, 60))
        for _ in range(20):
            assert not any(await asyncio.gather(*(progress.wait_until_applied(next(offsets), 0) for _ in range(500))))
            assert progress.waiting == len(progress.waiters) == 1 and len(progress.offsets) <= 2
        progress.publish(entry(1))
        assert await stays and not progress.waiters

    asyncio.run(scenario())


def test_whoever_leaves_takes_only_himself_out() -> None:
    async def scenario() -> None:
        progress = Progress()
        stays, goes = (asyncio.create_task(progress.wait_until_applied(4, 60)) for _ in range(2))
        await asyncio.sleep(0)
        goes.cancel()
        await asyncio.wait({goes})
        assert progress.waiting == 1
        progress.publish(entry(5))
        assert await stays and progress.waiting == 0

    asyncio.run(scenario())


def test_beyond_the_bound_nobody_waits_and_no_command_is_appended() -> None:
    async def scenario() -> None:
        progress = Progress(most=3)
        waits = [asyncio.create_task(progress.wait_until_applied(offset, 60)) for offset in range(3)]
        await asyncio.sleep(0)
        assert not await progress.wait_until_applied(DELAY_FILE, 60)
        with pytest.raises(Unavailable, match="3 requests wait"):
            progress.check()
        progress.publish(entry(1))
        await waits[0]
        progress.check()
        progress.fail(Unavailable("stopped"))
        for wait in waits[1:]:
            with pytest.raises(Unavailable, match="stopped"):
                await wait
        assert progress.waiting == 0
        with pytest.raises(Unavailable, match="stopped"):
            progress.check()

    asyncio.run(scenario())


def test_an_entry_that_is_published_again_is_kept_once() -> None:
    progress = Progress(keep=100)
    for number in range(100):
        for _ in range(1 + (number % 7 == 0)):  # a shard that changes its role publishes its last entry
            progress.publish(cycle(number))
    assert progress.applied == 500 and len(progress.recent) == 100
    assert progress.answer(400) is not None and progress.answer(399) is None


def test_a_replica_that_goes_back_follows_once_more() -> None:
    """Its store was closed and opened again before its last entries were flushed."""
    progress = Progress(keep=100)
    for number in (*range(50), *range(30, 100)):
        progress.publish(cycle(number))
        assert progress.applied == 5 * number + 5
    assert len(progress.recent) == 100 and progress.answer(400) is not None


def test_answers_of_a_history_that_may_be_void_are_forgotten() -> None:
    progress = Progress(keep=100)
    for number in range(5):
        progress.publish(cycle(number))
    progress.publish(Entry(5, 10, b"", 0, base=1))  # an operator made the replica at entry 1 the truth
    assert progress.applied == 10 and progress.answer(12) is None
    progress.publish(Entry(6, 15, b"", 0, {12: Answer.OK}))
    assert progress.answer(12) is not None
    progress.publish(Entry(9, 20, b"", 0, {17: Answer.OK}))  # after a copy of a peer's replica
    assert progress.answer(12) is None and progress.answer(17) is not None
