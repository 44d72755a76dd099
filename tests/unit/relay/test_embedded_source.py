"""How the relay of a server stores how far its destinations are."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from aiokafka.structs import TopicPartition

from duemq.bus.base import Bus
from duemq.client.consumer.base import FetchPosition
from duemq.relay.embedded.source import EmbeddedSource


class CursorLog:
    """Notes in which turn of the loop each cursor was stored."""

    def __init__(self) -> None:
        self.turn = 0
        self.stored: list[tuple[str, int]] = []

    async def set_consumer_cursor(self, topic: str, consumer: str, cursor: bytes) -> None:
        self.stored.append((consumer, self.turn))

    async def count_turns(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.turn += 1


async def nobody(partitions: Any) -> None: ...


def test_destinations_store_their_cursors_in_one_turn() -> None:
    """So the log needs one sync for all of them."""

    async def play() -> None:
        log = CursorLog()
        turns = asyncio.create_task(log.count_turns())
        place = {TopicPartition("orders", 0): FetchPosition(5, 5)}

        async def save(group: str, after_s: float) -> None:
            source = EmbeddedSource(lambda: cast(Bus, log), group, ["orders"], nobody, nobody)
            await asyncio.sleep(after_s)
            assert await source.save(place)

        # Not across a moment of storing: begin right after one.
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0.1 - loop.time() % 0.1)
        await asyncio.gather(*(save(f"destination.{number}", number * 0.005) for number in range(4)))
        turns.cancel()
        assert len(log.stored) == 4 and len({turn for _, turn in log.stored}) == 1

    asyncio.run(play())


def test_a_fast_destination_does_not_wait_for_the_others() -> None:
    async def play() -> None:
        log = CursorLog()
        source = EmbeddedSource(lambda: cast(Bus, log), "destination.one", ["orders"], nobody, nobody)
        partition = TopicPartition("orders", 0)
        loop = asyncio.get_running_loop()
        waited = []
        for commit in (0, 1_000, 1_001):
            await asyncio.sleep(0.1 - loop.time() % 0.1 + 0.001)
            begun = loop.time()
            assert await source.save({partition: FetchPosition(commit, commit)})
            waited.append(loop.time() - begun > 0.01)
        assert waited == [True, False, True]

    asyncio.run(play())
