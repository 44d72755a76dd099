"""The administrative log on each log of this machine: in force at once, in order, and short. On Kafka: `kafka/`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from duemq.bus.base import Bus
from duemq.bus.embedded.bus import EmbeddedBus
from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.admin import log as admin_log
from duemq.cluster.admin import state as admin_state
from duemq.cluster.admin.log import AdminLog
from duemq.cluster.admin.state import MAX_BYTES, ItemChange
from duemq.cluster.topics.internal_topics import ADMIN, create_logs
from duemq.model.errors import Rejected, StoreFailed, Unavailable
from duemq.model.messages.record import pack_record

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def following(bus: Bus, count: int = 1) -> AsyncIterator[list[AdminLog]]:
    """So many processes that follow the log."""
    logs = [AdminLog(lambda: bus, lambda: 7) for _ in range(count)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.run()) for one in logs]
        for one in logs:
            await one.ready.wait()
        try:
            yield logs
        finally:
            for task in tasks:
                task.cancel()


@pytest.fixture(params=["memory", "embedded"])
async def bus(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bus]:
    opened: Bus = MemoryBus(MemoryLog()) if request.param == "memory" else await EmbeddedBus.open(tmp_path / "bus")
    await create_logs(opened, 1)
    try:
        yield opened
    finally:
        await opened.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # what it looks at tells nobody
            await asyncio.sleep(0.01)


async def agree(*logs: AdminLog) -> None:
    await until(lambda: all(one.state.items == logs[0].state.items for one in logs))


async def test_a_change_is_in_force_everywhere(bus: Bus) -> None:
    async with following(bus, 2) as (one, other):
        told: list[int] = []
        other.on_change(lambda: told.append(1))
        assert await one.change("keys/a", {"x": 1}, "me") == 1
        assert dict(one.state.of_kind("keys")) == {"a": {"x": 1}}
        await agree(one, other)
        assert told


async def test_of_two_changes_at_a_time_one_is_told_that_it_lost(bus: Bus) -> None:
    async with following(bus, 2) as logs:
        outcomes = await asyncio.gather(
            *(one.change("keys/a", {"by": at}, "me", 0) for at, one in enumerate(logs)), return_exceptions=True
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Rejected", "int"]
        winner = next(at for at, outcome in enumerate(outcomes) if outcome == 1)
        await agree(*logs)
        assert [dict(one.state.of_kind("keys")) for one in logs] == [{"a": {"by": winner}}] * 2


async def test_a_new_item_does_not_lose_to_the_removal_of_others(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_state, "MAX_REMOVED", 1)
    async with following(bus, 2) as (one, other):
        for number in range(9):
            for version in range(number + 1):
                await one.change(f"keys/{number}", {"x": version}, "me")
        await agree(one, other)
        removals = (one.change(f"keys/{number}", None, "me") for number in range(9))
        made = (other.change(f"keys/new{number}", {"x": number}, "me") for number in range(3))
        await asyncio.gather(*removals, *made)
        await agree(one, other)
        assert {f"new{number}" for number in range(3)} <= dict(one.state.of_kind("keys")).keys()


async def test_it_is_shortened_and_who_begins_later_knows_all(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_log, "_KEPT_RECORDS", 10)
    async with following(bus) as (one,):
        await one.change("keys/first", {"x": 0}, "me")
        for number in range(100):
            await one.change(f"keys/{number % 7}", {"x": number} if number % 5 else None, "me")
        async with following(bus, 1) as (other,):
            assert other.state.items == one.state.items
            assert await bus.start_offset(ADMIN, 0) > 80
            await other.change("keys/first", None, "me")
            await agree(one, other)


async def test_all_items_have_a_bound_and_can_still_be_removed(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_state, "MAX_BYTES", 1_000)
    async with following(bus) as (one,):
        with pytest.raises(Rejected, match=r"1,000 bytes in all"):
            for number in range(20):
                await one.change(f"keys/{number}", {"x": "y" * 50}, "me")
        known = dict(one.state.items)
        await one.change("keys/0", None, "me")
        assert known["keys/0"].value and one.state.items["keys/0"].value is None
    assert MAX_BYTES == 512 << 10


async def test_before_the_log_was_read_nothing_is_changed(bus: Bus) -> None:
    with pytest.raises(Unavailable, match="being read for the first time"):
        await AdminLog(lambda: bus, lambda: 7).change("keys/a", {}, "me")
    assert await bus.end_offset(ADMIN, 0) == 0


async def test_a_log_that_is_away_is_followed_again_from_where_it_was(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, reading = False, bus.read

    async def read(*arguments: Any) -> Any:
        if away:
            raise StoreFailed("the log is away")
        return await reading(*arguments)

    monkeypatch.setattr(bus, "read", read)
    async with following(bus) as (one,):
        await one.change("keys/a", {"x": 1}, "me")
        away = True
        await bus.append({(ADMIN, 0): [ItemChange("keys/b", 1, {"x": 2}, 7, "other").frame()]})
        await until(lambda: one.trouble == "the log is away")
        assert dict(one.state.of_kind("keys")) == {"a": {"x": 1}}  # what was known is in force
        away = False
        await until(lambda: one.trouble is None)
        assert dict(one.state.of_kind("keys")) == {"a": {"x": 1}, "b": {"x": 2}}


class Away:
    """A bus that one process cannot read for a while."""

    def __init__(self, bus: Bus) -> None:
        self.bus, self.is_away = bus, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bus, name)

    async def read(self, *arguments: Any) -> Any:
        if self.is_away:
            raise StoreFailed("the log is away")
        return await self.bus.read(*arguments)


async def test_who_was_away_while_it_was_shortened_misses_nothing(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_log, "_KEPT_RECORDS", 5)
    away = Away(bus)
    late = AdminLog(lambda: cast(Bus, away), lambda: 7)
    async with asyncio.TaskGroup() as group, following(bus) as (one,):
        task = group.create_task(late.run())
        await late.ready.wait()
        await one.change("keys/a", {"x": 1}, "me")
        await agree(one, late)
        away.is_away = True
        for number in range(40):
            await one.change(f"keys/{number}", {"x": number}, "me")
        await one.change("keys/a", None, "me")
        assert await bus.start_offset(ADMIN, 0) > late.state.next_offset
        away.is_away = False
        await agree(one, late)
        assert late.state.items["keys/a"].value is None
        task.cancel()


class Remade(MemoryBus):
    """A bus that notices that the administrative topic was deleted and made again."""

    incarnations = 0

    def incarnation(self, topic: str) -> int:
        return self.incarnations


async def test_a_log_that_was_made_again_is_read_from_its_start_and_lost_keys_are_remembered() -> None:
    memory = MemoryLog()
    buses = [Remade(memory) for _ in range(2)]
    await create_logs(buses[0], 1)
    logs = [AdminLog(lambda bus=bus: bus, lambda: 7) for bus in buses]  # type: ignore[misc]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.run()) for one in logs]
        await asyncio.gather(*(one.ready.wait() for one in logs))
        await logs[0].change("keys/a", {"x": 1}, "me")
        await agree(*logs)
        assert not any(one.keys_are_lost for one in logs)
        del memory.topics[ADMIN]
        await create_logs(buses[0], 1)
        for bus in buses:
            bus.incarnations = 1
            bus.subscriptions.wake([(ADMIN, 0)])
        await until(lambda: all(one.keys_are_lost for one in logs))
        async with following(MemoryBus(memory)) as (late,):
            await until(lambda: late.keys_are_lost)
            await late.change("keys/b", {"x": 2}, "me")
            await agree(late, *logs)
            assert not any(one.keys_are_lost for one in (late, *logs))
        for task in tasks:
            task.cancel()


async def test_a_log_that_held_no_keys_is_not_closed_when_it_is_made_again() -> None:
    memory = MemoryLog()
    bus = Remade(memory)
    await create_logs(bus, 1)
    async with following(bus) as (one,):
        await one.change("destinations/a", {"x": 1}, "me")
        del memory.topics[ADMIN]
        await create_logs(bus, 1)
        bus.incarnations = 1
        bus.subscriptions.wake([(ADMIN, 0)])
        await until(lambda: not one.state.items)
        assert not one.keys_are_lost and one.trouble is None


async def test_a_log_that_cannot_be_read_makes_nobody_ready_and_stops_nothing(bus: Bus) -> None:
    async with following(bus) as (one,):
        for number in range(3):
            await one.change(f"keys/{number}", {"x": number}, "me")
        await bus.append({(ADMIN, 0): [pack_record(None, (), b"nothing")]})
        await until(lambda: not one.ready.is_set())
        assert one.trouble is not None and "record 3 of the administrative log cannot be read" in one.trouble
        with pytest.raises(Unavailable):
            await one.change("keys/a", {}, "me")
        await bus.trim(ADMIN, 0, 4)
        await until(lambda: "begins at record 4 and has no snapshot" in (one.trouble or ""))
