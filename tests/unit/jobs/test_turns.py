"""Whose work comes next, among the jobs of several callers."""

from __future__ import annotations

import asyncio

from duemq.proxy.jobs.turns import Turns


def test_callers_take_turns_however_much_one_of_them_wants() -> None:
    async def scenario() -> None:
        turns, order = Turns(1), list[str]()

        async def work(caller: str) -> None:
            async with turns.place(caller):
                order.append(caller)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for caller in "aaaabbc":
                group.create_task(work(caller), name="work")
        assert "".join(order) == "aabcaba"

    asyncio.run(scenario())


def test_work_that_is_cancelled_gives_its_turn_to_others() -> None:
    async def scenario() -> None:
        turns = Turns(1)

        async def work() -> None:
            async with turns.place("a"):
                await asyncio.sleep(0)

        for cancelled in range(1, 4):  # that has the place, that waits, that has just got its turn
            tasks = [asyncio.create_task(work(), name="work") for _ in range(3)]
            for _ in range(cancelled):
                await asyncio.sleep(0)
            tasks[cancelled // 2].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            async with asyncio.timeout(1), turns.place("b"):
                pass

    asyncio.run(scenario())
