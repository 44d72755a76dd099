"""Requests that share a sync of the embedded log, and their visibility before it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from duemq.bus.base import wall_clock
from duemq.bus.embedded import group_commit
from duemq.bus.embedded.bus import EmbeddedBus
from duemq.model.errors import Fenced, StoreFailed

COMMANDS, OUTCOMES = ("commands", 0), ("outcomes", 0)


class Steps(list[str]):
    """The steps of the log so far; fails at one of them if told to."""

    fails = ""

    def __call__(self, step: str) -> None:
        self.append(step)
        if step == self.fails:
            raise OSError(f"fails at {step}")

    @property
    def syncs(self) -> int:
        return self.count("after_sync")


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture(autouse=True)
def no_end_of_holding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "HOLD_S", 600.0)


def with_bus(
    folder: Path,
    steps: Steps,
    scenario: Callable[[EmbeddedBus], Awaitable[None]],
    clock: Callable[[], int] = wall_clock,
) -> None:
    async def run() -> None:
        bus = await EmbeddedBus.open(folder, failpoint=steps, clock=clock)
        try:
            for topic, _ in (COMMANDS, OUTCOMES):
                await bus.create_topic(topic, 1)
            steps.clear()
            await scenario(bus)
        finally:
            await bus.close()

    asyncio.run(run())


async def ahead(bus: EmbeddedBus, offset: int = 0, most: int = 99) -> list[bytes]:
    return [record.frame for record in await bus.ahead.read(*COMMANDS, offset, most)]


async def seen(bus: EmbeddedBus, topic: str = "commands") -> list[bytes]:
    return [record.frame for record in await bus.read(topic, 0, 0, 99)]


async def held(bus: EmbeddedBus, *frames: bytes) -> asyncio.Task[object]:
    """An append that waits for a cycle, and has its place."""
    appending = asyncio.create_task(bus.append({COMMANDS: frames}, for_answer=True))
    await asyncio.sleep(0)
    return appending


async def until_written(steps: Steps) -> None:
    while "after_write" not in steps:  # noqa: ASYNC110  # nothing tells
        await asyncio.sleep(0)


def test_a_cycle_and_the_commands_that_it_answers_share_a_sync(tmp_path: Path, steps: Steps) -> None:
    async def scenario(bus: EmbeddedBus) -> None:
        committer = await bus.committer("shard")
        woken = bus.ahead.subscribe("commands", 0)
        reader = bus.subscribe("commands", 0)
        steps.clear()
        calls = [await held(bus, b"a"), await held(bus, b"b", b"c")]
        assert await woken.wait(0)
        assert await ahead(bus) == [b"a", b"b", b"c"]
        assert (await ahead(bus, 1), await ahead(bus, 1, 1), await ahead(bus, 3)) == ([b"b", b"c"], [b"b"], [])
        assert bus.ahead.reach(*COMMANDS) == 3
        # Nothing else sees them before the cycle and its sync.
        info = await bus.topic("commands")
        assert info is not None
        assert (await seen(bus), bus.reach(*COMMANDS), await bus.end_offset(*COMMANDS)) == ([], 0, 0)
        assert (info.end_offsets, await reader.wait(0), steps) == ((0,), False, [])
        await committer.commit({OUTCOMES: [b"abc"]})
        assert not calls[0].done()  # the cycle may answer first
        await asyncio.gather(*calls)
        assert steps == ["before_write", "after_write", "after_sync"]
        assert (await seen(bus), await seen(bus, "outcomes")) == ([b"a", b"b", b"c"], [b"abc"])
        assert await reader.wait(0)
        assert await ahead(bus) == [b"a", b"b", b"c"]

    with_bus(tmp_path, steps, scenario)


def test_a_cycle_may_answer_commands_of_the_group_in_sync(tmp_path: Path, steps: Steps) -> None:
    async def scenario(bus: EmbeddedBus) -> None:
        committer = await bus.committer("shard")
        steps.clear()
        sent = asyncio.create_task(bus.append({COMMANDS: [b"a"]}))
        await until_written(steps)
        late = await held(bus, b"b")
        assert await ahead(bus) == [b"a", b"b"]
        assert await seen(bus) == []
        await committer.commit({OUTCOMES: [b"ab"]})
        await asyncio.gather(sent, late)
        assert steps.syncs == 2
        assert await seen(bus) == [b"a", b"b"]

    with_bus(tmp_path, steps, scenario)


def test_commands_are_held_for_a_while_and_for_no_other_request(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(bus: EmbeddedBus) -> None:
        first = await held(bus, b"a")
        await bus.append({COMMANDS: [b"b"]})  # sent, and answered once it is durable
        await first
        assert steps.syncs == 1
        monkeypatch.setattr(group_commit, "HOLD_S", 0.001)
        await bus.append({COMMANDS: [b"c"]}, for_answer=True)  # there is no master
        assert steps.syncs == 2

    with_bus(tmp_path, steps, scenario)


def test_a_failed_sync_fails_the_cycle_its_commands_and_the_next_group(tmp_path: Path, steps: Steps) -> None:
    async def scenario(bus: EmbeddedBus) -> None:
        committer = await bus.committer("shard")
        call = await held(bus, b"a")
        steps.fails = "after_sync"
        cycle = asyncio.create_task(committer.commit({OUTCOMES: [b"a"]}))
        await asyncio.sleep(0)
        following = await held(bus, b"b")
        results = await asyncio.gather(call, cycle, following, return_exceptions=True)
        assert [type(result) for result in results] == [StoreFailed] * 3
        for reading in (bus.ahead.read(*COMMANDS, 0, 9), bus.read(*COMMANDS, 0, 9)):
            with pytest.raises(StoreFailed):
                await reading

    with_bus(tmp_path, steps, scenario)


def test_a_fenced_cycle_leaves_the_commands_to_the_next_master(tmp_path: Path, steps: Steps) -> None:
    async def scenario(bus: EmbeddedBus) -> None:
        older = await bus.committer("shard")
        newer = await bus.committer("shard")
        call = await held(bus, b"a")
        with pytest.raises(Fenced):
            await older.commit({OUTCOMES: [b"old"]})
        await call
        assert await ahead(bus) == [b"a"]
        await newer.commit({OUTCOMES: [b"new"]})
        assert await seen(bus, "outcomes") == [b"new"]

    with_bus(tmp_path, steps, scenario)


def test_trims_and_topics_wait_for_the_group_in_sync(tmp_path: Path, steps: Steps) -> None:
    """They depend on the state that it publishes: a second trim, further back, must not undo the first one."""

    async def scenario(bus: EmbeddedBus) -> None:
        await bus.append({COMMANDS: [b"%d" % at for at in range(9)]})
        steps.clear()
        trims = [asyncio.create_task(bus.trim("commands", 0, 6))]
        await until_written(steps)
        trims.append(asyncio.create_task(bus.trim("commands", 0, 3)))
        made = await asyncio.gather(*(bus.create_topic(*topic) for topic in (("x", 1), ("y", 1), ("x", 2))))
        await asyncio.gather(*trims)
        assert await bus.start_offset("commands", 0) == 6
        assert [info.partitions for info in made] == [1, 1, 1]
        assert {info.name for info in await bus.topics()} == {"commands", "outcomes", "x", "y"}

    with_bus(tmp_path, steps, scenario)


def test_each_frame_of_a_group_has_the_time_of_its_own_append(tmp_path: Path, steps: Steps) -> None:
    """A message must not look early because its group was open before it was due; a master sees the same times."""
    now = 1_000

    async def scenario(bus: EmbeddedBus) -> None:
        nonlocal now
        committer = await bus.committer("shard")
        calls = [await held(bus, b"a"), await held(bus, b"b")]
        now = 1_007
        calls.append(await held(bus, b"c"))
        now = 900
        calls.append(await held(bus, b"d"))
        before = await bus.ahead.read(*COMMANDS, 0, 9)
        now = 1_009
        await committer.commit({OUTCOMES: [b"abcd"]})
        await asyncio.gather(*calls)
        after = await bus.read(*COMMANDS, 0, 9)
        assert before == after
        assert [(record.offset, record.timestamp) for record in after] == [(0, 1000), (1, 1000), (2, 1007), (3, 1007)]
        assert [record.timestamp for record in await bus.read(*OUTCOMES, 0, 9)] == [1_009]
        assert await bus.first_since("commands", 0, 1_001) == 2

    async def again(bus: EmbeddedBus) -> None:
        assert await seen(bus) == [b"a", b"b", b"c", b"d"]

    with_bus(tmp_path, steps, scenario, lambda: now)
    with_bus(tmp_path, steps, again)
