"""At most once: which ends of a handler say that nothing happened. All others leave the work in doubt."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from duemq.client.consumer.retry.policy import Pause, Reject, RetryLater
from duemq.client.http.errors import Unreachable
from duemq.client.idempotency.base import Busy, InDoubt, NothingHappened, Running
from tests.support.consumer.idempotency_world import BRIEF, KEEP, LEASE, T0, Mail, World

pytestmark = pytest.mark.anyio


class Declined(Exception):
    """The bank has said no."""


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    "error",
    [
        ValueError("anything"),
        TimeoutError("slow"),
        httpx.ReadTimeout("slow"),
        ConnectionResetError("gone"),
        ConnectionRefusedError("a second call of the same handler"),
        Unreachable("no answer", outcome_unknown=True),
        InDoubt("a partner did not answer"),
        asyncio.CancelledError("somebody cancelled what the handler waited for"),
        ExceptionGroup("tasks", [TimeoutError("slow")]),
        ExceptionGroup("tasks", [ExceptionGroup("inner", [InDoubt("a partner did not answer")])]),
        ExceptionGroup("tasks", [NothingHappened("in this task; the others were cancelled")]),
        ExceptionGroup("tasks", [Declined("in this task; the others were cancelled")]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_leaves_the_work_in_doubt(world: World, error: BaseException) -> None:
    handler = world.process(at_most_once=True, harmless=Declined)
    world.errors = [error]
    with pytest.raises(InDoubt) as doubt:
        await handler(Mail("a"))
    assert doubt.value is error or doubt.value.__cause__ is error
    with pytest.raises(Busy):
        await handler(Mail("a"))
    world.clock.pass_(LEASE)
    for again in (handler, world.process(at_most_once=True)):
        with pytest.raises(InDoubt, match="at most once"):
            await again(Mail("a"))
    assert not world.effects and not world.store.counts["release"]


@pytest.mark.parametrize(
    "error",
    [
        NothingHappened("the bank is closed"),
        Reject("no customer"),
        RetryLater("closed", delay="2h"),
        Pause("the database is away"),
        Busy(b"work within this work", Running("b", T0, T0 + 1), T0),
        Declined("no money"),
        ConnectionRefusedError("closed"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_work_without_effect_may_be_begun_again(world: World, error: Exception) -> None:
    handler = world.process(at_most_once=True, harmless=(Declined, ConnectionRefusedError))
    world.errors = [error]
    with pytest.raises(type(error)) as raised:
        await handler(Mail("a"))
    assert raised.value is error
    assert await handler(Mail("a")) == {"sent": "a", "time": 1}


async def test_what_is_in_doubt_stays_so_whatever_is_harmless(world: World) -> None:
    handler = world.process(at_most_once=True, harmless=Exception)
    world.errors = [InDoubt("a partner did not answer"), ExceptionGroup("tasks", [ValueError("named by its base")])]
    for name, error in (("a", InDoubt), ("b", ExceptionGroup)):
        with pytest.raises(error):
            await handler(Mail(name))
    world.clock.pass_(LEASE)
    with pytest.raises(InDoubt):
        await handler(Mail("a"))
    assert (await handler(Mail("b")))["time"] == 1


@pytest.mark.parametrize(
    "error",
    [TimeoutError("slow"), ExceptionGroup("tasks", [TimeoutError("slow")]), asyncio.CancelledError("stray")],
    ids=lambda error: type(error).__name__,
)
async def test_where_a_repeat_is_allowed_each_end_is_a_failure(world: World, error: BaseException) -> None:
    handler = world.process()
    world.errors = [error]
    with pytest.raises(type(error)):
        await handler(Mail("a"))
    assert (await handler(Mail("a")))["time"] == 1


async def test_a_task_group_that_fails_beside_the_effect_is_in_doubt(world: World) -> None:
    """One task is refused, harmlessly; the other one is cancelled behind its effect."""
    effects: list[str] = []

    async def handle(mail: Mail) -> None:
        paid = asyncio.Event()

        async def pay() -> None:
            effects.append(mail.id)
            paid.set()
            await asyncio.Event().wait()

        async def notify() -> None:
            await paid.wait()
            raise Declined("no such address")

        async with asyncio.TaskGroup() as group:
            group.create_task(pay())
            group.create_task(notify())

    handler: Any = world.once(handle, at_most_once=True, harmless=Declined)
    with pytest.raises(InDoubt):
        await handler(Mail("a"))
    world.clock.pass_(LEASE + KEEP // 2)
    with pytest.raises(InDoubt):
        await handler(Mail("a"))
    assert effects == ["a"]


async def test_a_release_that_the_store_does_not_hear_leaves_no_doubt_in_this_process(world: World) -> None:
    """Nothing happened, as the handler says. The record `begun` stays for a while, and this process knows better."""
    handler = world.process(at_most_once=True, store_timeout=BRIEF)
    for number, state in enumerate(("away", "lost")):
        name = f"{number}"
        setattr(world.store, state, {"release"})
        world.errors = [NothingHappened("closed"), NothingHappened("closed")]
        for _ in range(2):
            with pytest.raises(NothingHappened):
                await handler(Mail(name))
        setattr(world.store, state, set())
        world.clock.pass_(LEASE)
        assert await handler(Mail(name)) == {"sent": name, "time": 1}
        other = world.process(at_most_once=True)
        assert await other(Mail(name)) == {"sent": name, "time": 1}


async def test_what_another_process_has_begun_since_is_not_taken_from_it(world: World) -> None:
    handler, other = world.process(store_timeout=BRIEF), world.process()
    world.store.away, world.errors = {"release"}, [ValueError("no")]
    with pytest.raises(ValueError, match="no"):
        await handler(Mail("a"))
    world.store.away = set()
    world.clock.pass_(LEASE)
    world.gate.clear()
    world.started.clear()
    running = asyncio.ensure_future(other(Mail("a")))
    await world.started.wait()
    with pytest.raises(Busy):
        await handler(Mail("a"))
    world.gate.set()
    assert await running == await handler(Mail("a")) == {"sent": "a", "time": 1}
