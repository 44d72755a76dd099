"""Groups on a log in memory: workers lease messages, ack, nack and extend, or are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from duemq.model.destinations.pull import PULL, retry_fields
from duemq.model.errors import Rejected
from duemq.model.messages.record import unpack_record
from duemq.relay.groups.lease_pool import LeasedMessage, LeasePool
from duemq.relay.relay import Relay
from tests.support.relay.relay_site import Site, metric, until

pytestmark = pytest.mark.anyio

GROUP = "orders.billing"
LONG = 60_000
WAIT_S = 5.0


def declare(site: Site, attempts: int = 3, **fields: Any) -> None:
    site.declare(GROUP, url=PULL, topics=["orders"], retry=retry_fields(attempts), **fields)


async def pool_of(relay: Relay) -> LeasePool:
    return await relay.pool_of(GROUP)


def payloads(received: Sequence[LeasedMessage]) -> list[bytes]:
    return [each.message.payload for each in received]


async def collected(pool: LeasePool, count: int, visibility: int = LONG) -> list[LeasedMessage]:
    received = list[LeasedMessage]()
    while len(received) < count:
        received += await pool.receive(count, visibility, WAIT_S)
    return received


async def test_workers_share_the_messages_and_what_is_acked_never_comes_again(site: Site) -> None:
    declare(site)
    await site.deliver("orders", *(b"%d" % n for n in range(20)))
    async with site.relay() as relay:
        pool = await pool_of(relay)
        one, other = await collected(pool, 10), await collected(pool, 10)
        assert sorted(payloads(one + other)) == sorted(b"%d" % n for n in range(20))
        assert await pool.receive(1, LONG, 0) == [], "leased messages are hidden"
        assert await pool.ack([each.receipt for each in one]) == [True] * 10
    async with site.relay() as relay:
        pool = await pool_of(relay)
        again = await collected(pool, 10)
        assert sorted(payloads(again)) == sorted(payloads(other)), "a restart ends leases; acks are durable"
        assert await pool.ack([other[0].receipt]) == [False], "a receipt is for one delivery"
        assert {each.message.attempt for each in again} == {1}, "a restart counts for nothing"


async def test_an_ended_lease_and_a_nack_count_and_the_last_one_makes_a_dead_letter(site: Site) -> None:
    declare(site, attempts=3)
    await site.deliver("orders", b"1")
    async with site.relay() as relay:
        pool = await pool_of(relay)
        (first,) = await pool.receive(1, 20, WAIT_S)
        (second,) = await pool.receive(1, LONG, WAIT_S)
        assert (first.message.attempt, second.message.attempt) == (1, 2) and first.message.id == second.message.id
        assert await pool.ack([first.receipt]) == [False], "its lease has ended"
        assert await pool.nack([second.receipt, second.receipt], reason="no stock") == [True, False]
    async with site.relay() as relay:
        pool = await pool_of(relay)
        (third,) = await pool.receive(1, LONG, WAIT_S)
        assert third.message.attempt == 3, "the count survives a restart"
        assert await pool.nack([third.receipt], reason="no stock") == [True]
        await site.filled(f"dlq.destination.{GROUP}", 1)
        (letter,) = await site.bus.read(f"dlq.destination.{GROUP}", 0, 0, 9)
        headers = dict(unpack_record(letter.frame).headers)
        assert headers["x-duemq-reason"] == b"retries" and headers["x-duemq-error"] == b"no stock"
        assert await pool.receive(1, LONG, 0) == []


async def test_a_message_refused_for_good_is_a_dead_letter_and_a_redrive_is_for_the_group(site: Site) -> None:
    declare(site)
    await site.deliver("orders", b"1")
    async with site.relay() as relay:
        pool = await pool_of(relay)
        (first,) = await pool.receive(1, LONG, WAIT_S)
        assert await pool.nack([first.receipt], reason="no such order", dead=True) == [True]
        await site.redrive(GROUP, 0)
        (again,) = await pool.receive(1, LONG, WAIT_S)
        assert (again.message.id, again.message.topic, again.message.attempt) == (first.message.id, "orders", 1)
        assert await pool.ack([again.receipt]) == [True]


async def test_a_retry_of_a_former_group_of_the_name_is_a_dead_letter(site: Site) -> None:
    declare(site, start_id="former.1-x")
    await site.deliver("orders", b"1")
    async with site.relay() as relay:
        pool = await pool_of(relay)
        (one,) = await pool.receive(1, LONG, WAIT_S)
        await pool.nack([one.receipt])
    declare(site, start_id="present.2-x")
    async with site.relay() as relay:
        pool = await pool_of(relay)
        await site.filled(f"dlq.destination.{GROUP}", 1)
        assert await pool.receive(1, LONG, 0) == []


async def test_an_extended_lease_holds_and_a_repeated_ack_is_answered_as_the_first(site: Site) -> None:
    declare(site)
    await site.deliver("orders", b"1")
    async with site.relay() as relay:
        pool = await pool_of(relay)
        (one,) = await pool.receive(1, 50, WAIT_S)
        assert pool.extend([one.receipt, "other-1", "nonsense"], LONG) == [True, False, False]
        assert await pool.receive(1, LONG, 0.1) == []
        assert await pool.ack([one.receipt]) == await pool.ack([one.receipt]) == [True]
        assert pool.extend([one.receipt], LONG) == [False]


async def test_a_long_lease_holds_up_no_other_message_and_a_full_window_is_told(site: Site) -> None:
    declare(site, concurrency=4)
    await site.deliver("orders", *(b"%d" % n for n in range(30)))
    async with site.relay() as relay:
        pool = await pool_of(relay)
        (slow,) = await pool.receive(1, LONG, WAIT_S)
        for _ in range(29):
            (one,) = await pool.receive(1, LONG, WAIT_S)
            assert await pool.ack([one.receipt]) == [True]
        assert await pool.ack([slow.receipt]) == [True]
        await site.deliver("orders", *(b"x" for _ in range(8)))
        await collected(pool, 4)
        with pytest.raises(Rejected) as refused:
            await pool.receive(1, LONG, 0.05)
        assert refused.value.code == "too_many_leases"
        assert relay.measured()[GROUP].in_flight == relay.measured()[GROUP].limit == 4


async def test_only_some_messages_wait_in_memory_however_many_are_there(site: Site) -> None:
    declare(site)
    await site.deliver("orders", *(b"%d" % n for n in range(6_000)))
    async with site.relay() as relay:
        pool, seen = await pool_of(relay), set[bytes]()
        await until(lambda: relay.measured()[GROUP].in_hand >= 1_000)
        await asyncio.sleep(0.05)
        assert relay.measured()[GROUP].in_hand <= 2_000
        while len(seen) < 6_000:
            seen.update(payloads(await pool.receive(500, LONG, WAIT_S)))
        assert relay.measured()[GROUP].in_flight == 6_000


async def test_a_receiver_that_left_gets_nothing_and_waiting_ones_are_served_in_turn(site: Site) -> None:
    declare(site)
    async with site.relay() as relay:
        pool = await pool_of(relay)
        waiting = [asyncio.create_task(pool.receive(1, LONG, WAIT_S)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await site.deliver("orders", b"1", b"2")
        served = [payloads(await each) for each in waiting[1:]]
        assert sorted(served) == [[b"1"], [b"2"]]
        received = await pool.receive(1, LONG, 0.02)
        assert received == []


async def test_figures_and_metrics_say_how_leases_ended(site: Site) -> None:
    declare(site)
    await site.deliver("orders", b"1", b"2", b"3")
    async with site.relay() as relay:
        pool = await pool_of(relay)
        one, two, _ = await collected(pool, 3, visibility=200)
        await pool.ack([one.receipt])
        await pool.nack([two.receipt], delay_ms=3_600_000)
        await until(lambda: relay.measured()[GROUP].statuses.get("lease_ended"))
        assert relay.measured()[GROUP].statuses == {"acked": 1, "nacked": 1, "lease_ended": 1}
        assert relay.measured()[GROUP].results["failed"] == 2
        assert metric(relay, "attempts_total", destination=GROUP, result="accepted") == 1
