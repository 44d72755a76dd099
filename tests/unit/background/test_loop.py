"""What a loop in the background does when its work fails, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client import CollectorRegistry

from duemq.background.loop import Loop
from duemq.background.loop_collector import LoopCollector
from duemq.background.stray_cancellation import StrayCancellation
from duemq.model.errors import CorruptStore, Unavailable
from tests.support.virtual_loop import VirtualLoop


class Work:
    """Fails as it is told, and notes when it was done."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.pause_s: float | None = 1.0
        self.times: list[float] = []

    async def __call__(self) -> float | None:
        self.times.append(asyncio.get_running_loop().time())
        if self.error is not None:
            raise self.error
        return self.pause_s

    @property
    def gaps(self) -> list[float]:
        return [round(after - before, 3) for before, after in zip(self.times, self.times[1:], strict=False)]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())  # type: ignore[arg-type]


async def work_for(loop: Loop, seconds: float, stop: asyncio.Event | None = None) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await loop.run(stop)


def test_pauses_grow_while_it_fails_and_begin_again_after_a_success() -> None:
    async def scenario() -> None:
        work = Work()
        loop = Loop("work", work, first_s=0.1, longest_s=1.0)
        work.error = Unavailable("away")
        await work_for(loop, 5)
        assert work.gaps == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
        assert loop.trouble == "away" and loop.outage.failures == 8
        work.error, work.times = None, []
        await work_for(loop, 3.5)
        assert work.gaps == [1.0, 1.0, 1.0] and loop.trouble is None
        work.error, work.times = Unavailable("away"), []
        await work_for(loop, 0.5)
        assert work.gaps == [0.1, 0.2]

    run(scenario)


def test_only_what_is_urgent_shortens_the_pause_after_a_failure() -> None:
    async def scenario() -> None:
        work = Work()
        work.error = Unavailable("away")
        hurried = Loop("work", work, first_s=30.0, longest_s=300.0, on_failure=lambda error: hurried.wake(urgent=True))
        await work_for(hurried, 3.5)
        assert work.gaps == [1.0, 1.0, 1.0]
        work = Work()
        loop = Loop("work", work, on_failure=lambda error: loop.wake())
        work.error = Unavailable("away")
        await work_for(loop, 1)
        assert work.gaps == [0.1, 0.2, 0.4]
        work.error, work.times, work.pause_s = None, [], 60.0
        asyncio.get_running_loop().call_later(5, loop.wake)
        await work_for(loop, 10)
        assert work.gaps == [5.0]

    run(scenario)


def test_an_outage_has_one_line_and_its_end_another(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        work = Work()
        loop = Loop("work", work, "shard 3", quiet=1)
        caplog.set_level(logging.INFO)
        work.error = Unavailable("away")
        await work_for(loop, 0.05)
        work.error = None
        await work_for(loop, 0.05)
        assert not caplog.messages, "one failure is none to speak of here"
        work.error = Unavailable("away")
        await work_for(loop, 60)
        work.error = CorruptStore("broken")
        with pytest.raises(CorruptStore):
            await loop.run()
        work.error = None
        await work_for(loop, 0.05)
        await work_for(loop, 60)
        assert [message.split(" in ")[0] for message in caplog.messages] == [
            "work of shard 3 fails, and tries again: away",
            "work of shard 3 works again after 17 failures",
        ]

    run(scenario)


def test_a_bug_is_logged_with_its_traceback_and_ends_only_who_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        work = Work()
        work.error = KeyError("bug")
        await work_for(Loop("work", work, quiet=5), 60)
        (record,) = caplog.records
        assert record.levelno == logging.ERROR and record.exc_info is not None
        with pytest.raises(KeyError):
            await Loop("work", work, ends_on=(Exception,)).run()
        work.error = asyncio.CancelledError()  # of something that was awaited
        with pytest.raises(StrayCancellation):
            await Loop("work", work, ends_on=(Exception,)).run()

    run(scenario)


def test_it_ends_when_the_work_is_done_and_when_it_is_stopped() -> None:
    async def scenario() -> None:
        work, stop = Work(), asyncio.Event()
        work.pause_s = None
        await Loop("work", work).run()
        work.pause_s = 60.0
        for error in (None, Unavailable("away")):
            work.error = error
            stop.clear()
            begun = asyncio.get_running_loop().time()
            asyncio.get_running_loop().call_later(5, stop.set)
            await Loop("work", work, first_s=60.0, longest_s=60.0).run(stop)
            assert asyncio.get_running_loop().time() - begun == 5

    run(scenario)


def test_its_figures_say_how_often_and_for_how_long_it_fails() -> None:
    async def scenario() -> None:
        registry = CollectorRegistry()
        registry.register(LoopCollector())
        work = Work()
        loop = Loop("figures under test", work)
        work.error = Unavailable("away")
        labels = {"loop": loop.name}
        async with asyncio.TaskGroup() as group:
            task = group.create_task(loop.run(), name="loop")
            await asyncio.sleep(1)
            assert registry.get_sample_value("duemq_loop_failures_total", labels) == 4
            assert (registry.get_sample_value("duemq_loop_failing_seconds", labels) or 0) > 0
            assert registry.get_sample_value("duemq_loop_pulse_age_seconds", labels) is not None
            work.error = None
            await asyncio.sleep(2)
            assert registry.get_sample_value("duemq_loop_failing_seconds", labels) == 0
            task.cancel()
        assert registry.get_sample_value("duemq_loop_failing_seconds", labels) is None, "it runs no more"

    run(scenario)
