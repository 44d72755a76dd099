"""The store is away, or silent, at each step of the work: nothing is done twice, and the consumer pauses."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from duemq.client.consumer.retry.policy import Pause
from duemq.client.idempotency.base import Busy, InDoubt
from duemq.model.errors import CorruptStore, Unavailable
from tests.support.consumer.idempotency_world import BRIEF, KEEP, LEASE, Mail, World
from tests.support.patience import WITHIN_S

pytestmark = pytest.mark.anyio

FAULTS = ["away", "lost", "silent"]


@pytest.fixture
def world() -> World:
    return World()


async def paused(handler: Any, name: str = "a") -> Pause:
    with pytest.raises(Pause) as pause:
        await handler(Mail(name))
    assert isinstance(pause.value.__cause__, Unavailable)
    return pause.value


@pytest.mark.parametrize("at_most_once", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
async def test_nothing_is_begun_without_the_store_and_later_it_is(world: World, fault: str, at_most_once: bool) -> None:
    """Where the answer was lost the store has it as begun, and nobody is at it: this process goes on with it."""
    handler = world.process(at_most_once=at_most_once, store_timeout=BRIEF)
    setattr(world.store, fault, {"begin"})
    for _ in range(2):
        assert "is not begun without its store" in str(await paused(handler))
    assert not world.effects
    setattr(world.store, fault, set())
    world.clock.pass_(LEASE)
    assert await handler(Mail("a")) == {"sent": "a", "time": 1}


@pytest.mark.parametrize("at_most_once", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
async def test_work_that_the_store_cannot_record_is_not_done_again(
    world: World, caplog: pytest.LogCaptureFixture, fault: str, at_most_once: bool
) -> None:
    handler = world.process(at_most_once=at_most_once, store_timeout=BRIEF, cached=0)
    setattr(world.store, fault, {"finish"})
    for _ in range(2):
        assert "is done, and its store does not know" in str(await paused(handler))
    assert "its store cannot record it" in caplog.text
    begins = world.store.counts["begin"]
    setattr(world.store, fault, set())
    assert await handler(Mail("a")) == {"sent": "a", "time": 1}
    assert world.store.counts["begin"] == begins, "only its record was tried again"
    assert await world.process(at_most_once=at_most_once)(Mail("a")) == {"sent": "a", "time": 1}
    assert world.effects == {"a": 1}


async def test_where_the_process_ends_before_the_record_the_store_decides(world: World) -> None:
    """Without a record it is as after a crash: begun again when its lease ends, or in doubt."""
    for at_most_once in (False, True):
        name = f"{at_most_once}"
        world.store.away = {"finish"}
        await paused(world.process(at_most_once=at_most_once, store_timeout=BRIEF), name)
        world.store.away = set()
        other = world.process(at_most_once=at_most_once)
        with pytest.raises(Busy):
            await other(Mail(name))
        world.clock.pass_(LEASE)
        if at_most_once:
            with pytest.raises(InDoubt):
                await other(Mail(name))
        else:
            assert (await other(Mail(name)))["time"] == 2
    assert world.effects == {"False": 2, "True": 1}


async def test_work_recorded_too_late_says_that_another_process_did_it_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    handler, other = world.process(store_timeout=BRIEF), world.process()
    world.store.away = {"finish"}
    await paused(handler)
    world.store.away = set()
    world.clock.pass_(LEASE)
    await other(Mail("a"))
    assert await handler(Mail("a")) == {"sent": "a", "time": 1}
    assert "another attempt has begun the work since" in caplog.text


async def test_a_store_that_is_back_soon_is_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.client.idempotency.attempts._AGAIN_S", (0.0,))
    handler = world.process(store_timeout=timedelta(minutes=10))
    world.store.next_fail["finish"] = 5
    assert await handler(Mail("a")) == {"sent": "a", "time": 1}
    assert world.store.counts["finish"] == 6


async def test_what_could_not_be_released_is_once_the_store_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message comes to another process, which would wait for the end of the lease: six did in a round of 10,000."""
    monkeypatch.setattr("duemq.client.idempotency.attempts._LATER_S", 0.001)
    world.store.away, world.errors = {"release"}, [ValueError("no")]
    with pytest.raises(ValueError, match="no"):
        await world.process(store_timeout=BRIEF)(Mail("a"))
    other = world.process()
    with pytest.raises(Busy):
        await other(Mail("a"))
    world.store.away = set()
    world.store.reached["release"].clear()
    async with asyncio.timeout(WITHIN_S):
        await world.store.reached["release"].wait()
    await asyncio.sleep(0)  # it is answered in this turn
    assert await other(Mail("a")) == {"sent": "a", "time": 1}


async def test_an_error_of_the_handler_that_looks_like_the_stores_is_the_handlers(world: World) -> None:
    world.errors = [Unavailable("duemq is")]
    with pytest.raises(Unavailable, match="duemq is"):
        await world.process()(Mail("a"))


async def test_a_damaged_key_pauses_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin(*args: object) -> None:
        raise CorruptStore("a key")

    monkeypatch.setattr(world.store, "begin", begin)
    with pytest.raises(CorruptStore):
        await world.process()(Mail("a"))


# --- cancellations ------------------------------------------------------------------------------------------------


async def cancelled(world: World, handler: Any, call: str, times: int = 1) -> None:
    """While the store is at such a call."""
    task = asyncio.ensure_future(handler(Mail("a")))
    await world.store.reached[call].wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)  # the cancellation arrives
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_while_it_begins_leaves_nothing_begun(world: World) -> None:
    gate = world.store.hold("begin")
    handler = world.process(at_most_once=True)
    task = asyncio.ensure_future(handler(Mail("a")))
    await world.store.reached["begin"].wait()
    task.cancel()
    await asyncio.sleep(0)  # the cancellation arrives
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await world.process(at_most_once=True)(Mail("a")) == {"sent": "a", "time": 1}


async def test_a_cancellation_behind_the_work_waits_until_it_is_recorded(world: World) -> None:
    gate = world.store.hold("finish")
    task = asyncio.ensure_future(world.process(at_most_once=True)(Mail("a")))
    await world.store.reached["finish"].wait()
    task.cancel()
    await asyncio.sleep(0)  # the cancellation arrives
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await world.process(at_most_once=True)(Mail("a")) == {"sent": "a", "time": 1}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("call", ["begin", "finish", "release"])
async def test_a_silent_store_does_not_hold_a_handler_that_is_cancelled(
    world: World, monkeypatch: pytest.MonkeyPatch, call: str, times: int
) -> None:
    """Once it waits a little, twice it does not. What is known here is known at the next try."""
    wait = 0.01 if times == 1 else 0.5
    monkeypatch.setattr("duemq.client.idempotency.attempts._LEAVE_S", wait)
    handler = world.process(at_most_once=call != "release", store_timeout=timedelta(hours=1))
    world.errors = [ValueError("no")] * (call == "release")
    world.store.silent, world.store.lost = {call}, {call}
    await cancelled(world, handler, call, times)
    world.store.silent = world.store.lost = set()
    assert await handler(Mail("a")) == {"sent": "a", "time": 1}
    assert world.effects == {"a": 1}


async def test_a_handler_that_is_cancelled_is_not_held_by_the_release(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq.client.idempotency.attempts._LEAVE_S", 0.01)
    handler = world.process(store_timeout=timedelta(hours=1))
    world.gate.clear()
    world.store.silent = {"release"}
    task = asyncio.ensure_future(handler(Mail("a")))
    await world.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    world.gate.set()
    world.store.silent = set()
    assert await handler(Mail("a")) == {"sent": "a", "time": 1}


async def test_a_request_that_the_store_gives_up_is_no_cancellation(world: World) -> None:
    """As a client does with what waits when it is closed."""
    world.store.given_up = {"begin"}
    handler = world.process(store_timeout=BRIEF)
    await paused(handler)
    world.store.given_up = set()
    assert (await handler(Mail("a")))["time"] == 1


async def test_what_is_remembered_of_outages_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forgotten is as after a crash: its lease has to run out."""
    monkeypatch.setattr("duemq.client.idempotency.attempts._REMEMBERED", 2)
    handler = world.process(store_timeout=BRIEF)
    world.store.lost = {"begin"}
    for name in ("a", "b", "c"):
        await paused(handler, name)
    world.store.lost = set()
    with pytest.raises(Busy):
        await handler(Mail("a"))
    for name in ("b", "c"):
        assert (await handler(Mail(name)))["time"] == 1
    world.clock.pass_(LEASE + KEEP)
    assert (await handler(Mail("a")))["time"] == 1
