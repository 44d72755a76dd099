"""Handlers that do the work of each key once."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from duemq.client.consumer.retry.policy import DeadLetter, Levels, Reject, RetryLater, Wait, decide
from duemq.client.idempotency.base import Busy, InDoubt
from duemq.client.idempotency.memory import MemoryStore
from duemq.client.idempotency.once import once
from duemq.model.errors import Rejected
from tests.support.consumer.idempotency_world import BRIEF, KEEP, LEASE, Mail, World

pytestmark = pytest.mark.anyio


@pytest.fixture
def world() -> World:
    return World()


async def test_a_repeat_gets_the_first_result_from_the_cache_or_the_store(world: World) -> None:
    one, two = world.process(), world.process()
    first = await one(Mail("a"))
    assert first == {"sent": "a", "time": 1}
    assert await one(Mail("a")) == first
    assert world.store.counts["begin"] == 1, "from the cache"
    assert [await two(Mail("a")) for _ in range(2)] == [first, first]
    assert world.store.counts["begin"] == 2, "from the store, then from the cache"
    assert await two(Mail("b")) == {"sent": "b", "time": 1}


async def test_a_result_is_kept_as_long_as_asked_and_the_cache_is_bounded(world: World) -> None:
    handler = world.process(cached=2)
    for name in ("a", "b", "a", "c"):
        await handler(Mail(name))
    begins = world.store.counts["begin"]
    await handler(Mail("a"))
    assert world.store.counts["begin"] == begins, "used more lately than b"
    await handler(Mail("b"))
    assert (world.store.counts["begin"], world.effects["b"]) == (begins + 1, 1), "the store has it"
    world.clock.pass_(KEEP)
    assert await handler(Mail("b")) == {"sent": "b", "time": 2}


async def test_what_failed_is_done_at_the_next_try(world: World) -> None:
    handler = world.process()
    world.errors = [ValueError("no"), RetryLater("later")]
    for error in (ValueError, RetryLater):
        with pytest.raises(error):
            await handler(Mail("a"))
    assert (await handler(Mail("a")))["time"] == 1


async def test_a_cancelled_handler_may_be_repeated_at_once_or_at_most_once_is_in_doubt(world: World) -> None:
    for at_most_once in (False, True):
        handler, name = world.process(at_most_once=at_most_once), f"{at_most_once}"
        world.gate.clear()
        world.started.clear()
        task = asyncio.ensure_future(handler(Mail(name)))
        await world.started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        world.gate.set()
        if not at_most_once:
            assert (await handler(Mail(name)))["time"] == 1
    with pytest.raises(Busy):
        await handler(Mail("True"))
    world.clock.pass_(LEASE)
    with pytest.raises(InDoubt):
        await handler(Mail("True"))
    assert world.effects == {"False": 1}


async def test_a_time_out_is_a_failure_as_any_other_where_a_repeat_is_allowed(world: World) -> None:
    handler = world.process()
    world.errors = [TimeoutError("slow")]
    with pytest.raises(TimeoutError):
        await handler(Mail("a"))
    assert (await handler(Mail("a")))["time"] == 1


async def test_who_meets_another_process_comes_back_when_its_lease_is_over(world: World) -> None:
    one, two = world.process(), world.process()
    world.gate.clear()
    first = asyncio.ensure_future(one(Mail("a")))
    await world.started.wait()
    with pytest.raises(Busy) as busy:
        await two(Mail("a"))
    for retried in (0, 16, 99):
        assert decide(busy.value, Levels(), retried) == Wait("after", 300_000), "it uses up no retries"
    world.gate.set()
    assert await first == await two(Mail("a"))
    assert world.effects == {"a": 1}


async def test_what_is_in_doubt_goes_to_the_dead_letters(world: World) -> None:
    assert decide(InDoubt("x"), Levels(), 0) == DeadLetter("in_doubt")
    assert decide(Reject("x"), Levels(), 0) == DeadLetter("rejected")


async def test_a_handler_slower_than_its_lease_is_begun_again_and_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = world.process(), world.process()
    world.gate.clear()
    slow = asyncio.ensure_future(one(Mail("a")))
    await world.started.wait()
    world.started.clear()
    world.clock.pass_(LEASE)
    other = asyncio.ensure_future(two(Mail("a")))
    await world.started.wait()
    world.gate.set()
    await asyncio.gather(slow, other)
    assert world.effects == {"a": 2}
    assert "longer than its lease of 300000 ms" in caplog.text


async def test_a_thousand_tasks_of_fifty_keys_take_effect_once_each(world: World) -> None:
    handlers = [world.process(), world.process(cached=0)]
    names = [f"{number % 50}" for number in range(1_000)]
    found = await asyncio.gather(*(handlers[int(name) % 2](Mail(name)) for name in names), return_exceptions=True)
    assert found == [{"sent": name, "time": 1} for name in names]
    assert world.effects == {str(number): 1 for number in range(50)}


async def test_of_those_who_wait_for_a_failure_the_next_one_tries(world: World) -> None:
    handler = world.process()
    world.errors = [ValueError("one"), ValueError("two")]
    found = await asyncio.gather(*(handler(Mail("a")) for _ in range(5)), return_exceptions=True)
    assert Counter(type(each) for each in found) == {ValueError: 2, dict: 3}
    assert world.effects == {"a": 1}


async def test_a_failed_release_does_not_hide_the_failure(world: World, caplog: pytest.LogCaptureFixture) -> None:
    handler = world.process(store_timeout=BRIEF)
    world.store.away, world.errors = {"release"}, [ValueError("no")]
    with pytest.raises(ValueError, match="no"):
        await handler(Mail("a"))
    assert "cannot release" in caplog.text


async def test_a_result_that_is_no_json_does_not_undo_the_work(world: World, caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    @once(world.store)
    async def handler(mail: Mail) -> object:
        calls.append(mail)
        return object()

    assert [await handler(Mail("a")) for _ in range(2)] == [None, None]
    assert len(calls) == 1 and "is not JSON" in caplog.text


async def test_handlers_have_keys_of_their_own_unless_they_share_a_scope(world: World) -> None:
    @once(world.store)
    async def one(mail: Mail) -> str:
        return "one"

    @once(world.store)
    async def two(mail: Mail) -> str:
        return "two"

    shared = [once(world.store, scope="both")(each.__wrapped__) for each in (one, two)]  # type: ignore[attr-defined]
    assert [await handler(Mail("a")) for handler in (one, two)] == ["one", "two"]
    assert [await handler(Mail("a")) for handler in shared] == ["one", "one"]
    assert one.__name__ == "one"
    mixed = [once(world.store, scope=scope)(one.__wrapped__) for scope in ("s", "sa")]  # type: ignore[attr-defined]
    await mixed[0](Mail("ab"))
    begins = world.store.counts["begin"]
    await mixed[1](Mail("b"))
    counts = world.store.counts
    assert (counts["begin"], counts["finish"]) == (begins + 1, 5), "s and ab are not sa and b"


async def test_a_business_key_is_text_or_bytes_and_there_has_to_be_one(world: World) -> None:
    by_key = world.process(key=lambda mail: mail.key)
    await by_key(Mail("a", b"order-1"))
    await by_key(Mail("b", b"order-1"))
    assert world.effects == {"a": 1}
    assert await world.process(key=lambda mail: mail.text)(Mail("c", text="order-1")) == {"sent": "a", "time": 1}
    for key in (None, b"", b"x" * 1_025):
        with pytest.raises(Reject, match="it has 1 to 1024"):
            await by_key(Mail("a", key))
    await by_key(Mail("d", b"x" * 1_024))


def test_options_that_cannot_be_are_refused() -> None:
    for options, field in (
        ({"keep": timedelta(0)}, "keep"),
        ({"lease": timedelta(-1)}, "lease"),
        ({"cached": -1}, "cached"),
        ({"cached_bytes": -1}, "cached_bytes"),
        ({"store_timeout": timedelta(0)}, "store_timeout"),
        ({"harmless": (ValueError, asyncio.CancelledError)}, "harmless"),
        ({"harmless": ValueError("not a class")}, "harmless"),
        ({"scope": ""}, "scope"),
        ({"scope": "a\0b"}, "scope"),
    ):
        with pytest.raises(Rejected) as refused:
            once(MemoryStore(), **options)
        assert (refused.value.code, refused.value.field) == ("bad_option", field)


def test_a_handler_without_async_is_refused_when_it_is_decorated() -> None:
    with pytest.raises(Rejected, match="not `async def`"):
        once(MemoryStore())(lambda mail: mail)


@pytest.mark.parametrize("says", [{"shared": True}, {}], ids=["shared", "does not say"])
def test_a_store_that_others_use_needs_a_scope(says: dict[str, bool]) -> None:
    """Module and name are `__main__.handle` in every program."""
    store: Any = type("Foreign", (), says)()
    with pytest.raises(Rejected) as refused:
        once(store)
    assert (refused.value.code, refused.value.field) == ("bad_option", "scope")
    once(store, scope="billing")


def test_two_handlers_of_one_name_on_one_store_need_scopes() -> None:
    """As those of one function that makes the handlers of several consumers."""

    def make(store: MemoryStore, **options: Any) -> None:
        @once(store, **options)
        async def handle(mail: Mail) -> None: ...

    store = MemoryStore()
    make(store)
    make(MemoryStore())
    with pytest.raises(Rejected, match=r"make\.<locals>\.handle use one store") as refused:
        make(store)
    assert (refused.value.code, refused.value.field) == ("bad_option", "scope")
    make(store, scope="one")
    make(store, scope="one")


async def test_the_memory_for_results_is_bounded_in_bytes(world: World) -> None:
    texts = {"a": "x" * 2_000, "b": "x" * 1_000, "c": "x" * 6_000}

    @once(world.store, scope="tests", cached_bytes=5_000, clock=world.clock)
    async def handler(mail: Mail) -> str:
        return texts[mail.id]

    async def is_cached(name: str) -> bool:
        begins = world.store.counts["begin"]
        assert await handler(Mail(name)) == texts[name]
        return world.store.counts["begin"] == begins

    for name in texts:
        await handler(Mail(name))
    assert [await is_cached(name) for name in texts] == [True, True, False], "a larger one displaces none"
    texts["d"] = "x" * 1_500
    await handler(Mail("d"))
    assert [await is_cached(name) for name in ("b", "d", "a", "b")] == [True, True, False, False]
