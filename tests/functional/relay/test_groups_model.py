"""A group under random schedules in virtual time: workers ack, nack, forget and die, and the relay crashes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from duemq.model.destinations.pull import PULL, retry_fields
from duemq.model.errors import Unavailable
from duemq.model.messages.record import unpack_record
from duemq.relay.groups.lease_pool import LeasePool
from tests.support.relay.relay_site import Site
from tests.support.virtual_loop import VirtualLoop

GROUP, MESSAGES, ATTEMPTS, WORKERS, LIVES = "orders.billing", 80, 6, 4, 5
CHOICES = ("ack", "ack", "ack", "nack", "dead", "extend", "forget")
_WINDOW_S = 0.2  # between the end of a lease and a crash: the log may have the retry, and not yet the position


class Crashed:
    """A log that stores nothing any more."""

    def __getattr__(self, name: str) -> Any:
        raise Unavailable("crashed")


class Model:
    """What workers may see. `life`: the number of the relay, whose end ends all leases."""

    def __init__(self, seed: int) -> None:
        self.draw, self.site, self.life = random.Random(seed), Site(), 0
        self.bus = self.site.bus
        self.leases: dict[bytes, tuple[float, int]] = {}  # payload -> end of the lease by the loop's clock, life
        self.done = set[bytes]()  # acked or dead, as an answer said
        self.unknown = set[bytes]()  # the worker died before the answer
        self.doubtful = set[bytes]()  # the message and its retry may both come
        self.received = set[bytes]()
        self.again = 0

    async def work(self, pool: LeasePool, *, patient: bool = False) -> None:
        """One worker, until nothing comes. A patient one acks everything at once."""
        draw, loop = self.draw, asyncio.get_running_loop()
        while True:
            visibility = 60_000 if patient else draw.randint(50, 400)
            messages = await pool.receive(draw.randint(1, 5), visibility, 2.0)
            now = loop.time()
            for each in messages:
                payload = each.message.payload
                end, life = self.leases.get(payload, (0.0, 0))
                assert life != self.life or end <= now + 0.002 or payload in self.doubtful, "in two hands"
                assert payload not in self.done or payload in self.doubtful, "it came after its end"
                assert each.message.attempt <= ATTEMPTS
                self.again += payload in self.received
                self.received.add(payload)
                self.leases[payload] = now + visibility / 1000, self.life
            if not messages:
                return
            if not patient:
                await asyncio.sleep(draw.choice((0.0, 0.01, 0.1, 0.5)))
            for each in messages:
                await self._answer(pool, each.receipt, each.message.payload, "ack" if patient else draw.choice(CHOICES))

    async def _answer(self, pool: LeasePool, receipt: str, payload: bytes, choice: str) -> None:
        if choice == "forget":
            return
        if choice == "extend":
            now = asyncio.get_running_loop().time()
            if pool.extend([receipt], 300) == [True]:
                self.leases[payload] = now + 0.3, self.life
            return
        self.unknown.add(payload)
        if choice != "ack":
            self.leases.pop(payload, None)  # given up: a nacked message may come before the answer
        (yes,) = await (pool.ack([receipt]) if choice == "ack" else pool.nack([receipt], dead=choice == "dead"))
        self.unknown.discard(payload)
        if yes and choice != "nack":
            self.done.add(payload)

    @asynccontextmanager
    async def relay(self, *, crashes: bool) -> AsyncIterator[LeasePool]:
        self.life += 1
        async with self.site.relay() as relay:
            yield await relay.pool_of(GROUP)
            if crashes:
                now, site = asyncio.get_running_loop().time(), self.site
                self.doubtful |= {each for each, (end, _) in self.leases.items() if now - _WINDOW_S <= end <= now}
                self.doubtful |= self.unknown
                site.bus = Crashed()
        self.site.bus = self.bus

    async def run(self) -> None:
        site, draw = self.site, self.draw
        site.declare(GROUP, url=PULL, topics=["orders"], retry=retry_fields(ATTEMPTS))
        payloads = [b"%d" % number for number in range(MESSAGES)]
        await site.deliver("orders", *payloads[: MESSAGES // 2])
        await site.deliver("orders", *payloads[MESSAGES // 2 :], partition=1)
        for _ in range(LIVES):
            async with self.relay(crashes=draw.random() < 0.6) as pool:
                workers = [asyncio.create_task(self.work(pool)) for _ in range(WORKERS)]
                await asyncio.sleep(draw.random())
                for worker in workers:
                    worker.cancel()
                results = await asyncio.gather(*workers, return_exceptions=True)
                assert not [one for one in results if isinstance(one, Exception)], results
        async with self.relay(crashes=False) as pool:
            await self.work(pool, patient=True)
        ended = self.done | self.unknown | await self._dead()
        assert ended == set(payloads), "nothing is lost"

    async def _dead(self) -> set[bytes]:
        topic = f"dlq.destination.{GROUP}"
        if await self.bus.topic(topic) is None:
            return set()
        return {unpack_record(record.frame).payload for record in await self.bus.read(topic, 0, 0, 10_000)}


@pytest.mark.parametrize("seed", range(12))
def test_every_message_is_acked_or_dead_and_never_in_two_hands(seed: int) -> None:
    loop, model = VirtualLoop(), Model(seed)
    try:
        loop.run_until_complete(model.run())
    finally:
        loop.close()
    assert model.again
