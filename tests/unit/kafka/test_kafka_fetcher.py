"""What `Fetcher` asks of a broker that holds each fetch back until there is something, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import errors
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from duemq.bus.kafka.fetch.fetcher import Fetcher
from duemq.bus.kafka.requests.wire import FetchedRecords, Wire
from duemq.model.messages.record import Partition
from tests.support.virtual_loop import VirtualLoop

_BROKER = 1
_TRIP_S = 0.001


class Broker:
    """In place of the wire. `asked`: the partitions of each fetch; `woken`: its readers were."""

    def __init__(self) -> None:
        self.asked: list[list[Partition]] = []
        self.woken = asyncio.Event()
        self._busy: set[str] = set()
        self._grown = asyncio.Condition()
        self._batches: dict[Partition, list[bytes]] = {}
        self.failing: dict[Partition, Any] = {}  # with the class of the error
        self.unled: set[Partition] = set()
        self.client = SimpleNamespace(force_metadata_update=lambda: None)

    def leader(self, topic: str, partition: int) -> int | None:
        return None if (topic, partition) in self.unled else _BROKER

    async def offsets(self, partitions: Iterable[Partition], at: int) -> dict[Partition, int]:
        return {where: len(self._batches.get(where, ())) for where in partitions}

    async def fetch(
        self, node: int, offsets: dict[Partition, int], wait_ms: int, max_bytes: int, connection: str
    ) -> dict[Partition, FetchedRecords]:
        assert connection not in self._busy, "a broker answers the requests of a connection in turn: it would wait"
        self._busy.add(connection)
        self.asked.append(sorted(offsets))
        try:
            await asyncio.sleep(_TRIP_S * random.Random(len(self.asked)).random())
            async with asyncio.timeout(wait_ms / 1000), self._grown:
                await self._grown.wait_for(lambda: self._has_news(offsets))
        except TimeoutError:
            pass
        finally:
            self._busy.remove(connection)
        return {
            where: FetchedRecords(self.failing.get(where), 0, 0, [], b"".join(self._batches.get(where, [])[offset:]))
            for where, offset in offsets.items()
        }

    async def append(self, where: Partition) -> None:
        """One batch of one record."""
        batches = self._batches.setdefault(where, [])
        batches.append(_batch(len(batches)))
        async with self._grown:
            self._grown.notify_all()

    def _has_news(self, offsets: dict[Partition, int]) -> bool:
        return any(
            where in self.failing or len(self._batches.get(where, ())) > offset for where, offset in offsets.items()
        )


def _batch(offset: int) -> bytes:
    builder: Any = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    builder.append(0, 1, None, b"value", [])
    raw = builder.build()
    raw[:8] = offset.to_bytes(8, "big")  # not part of what the checksum is of
    return bytes(raw)


def following(partitions: int, scenario: Callable[[Broker, Fetcher, list[Partition]], Awaitable[None]]) -> None:
    """Run a scenario with readers of so many partitions, each of whom has read all that there is."""

    async def run() -> None:
        broker = Broker()
        fetcher = Fetcher(cast(Wire, broker), 1 << 20, lambda grown: broker.woken.set(), lambda where: 0)
        everything = [("t", number) for number in range(partitions)]
        for where in everything:
            fetcher.follow(where, 0)
            fetcher.read(where, 0, 100, 1 << 20)
        pump = asyncio.create_task(fetcher.run())
        try:
            await asyncio.sleep(0.1)
            await scenario(broker, fetcher, everything)
        finally:
            pump.cancel()
            await asyncio.wait([pump])

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def test_partitions_nothing_comes_to_are_asked_for_by_one_fetch_twice_a_second() -> None:
    async def scenario(broker: Broker, fetcher: Fetcher, everything: list[Partition]) -> None:
        await asyncio.sleep(10)
        assert 20 <= len(broker.asked) <= 21
        assert all(asked == everything for asked in broker.asked)

    following(16, scenario)


@pytest.mark.parametrize("pause_ms", [0, 2, 20, 80])
@pytest.mark.parametrize("partitions", [2, 4, 16, 64])
def test_a_reader_of_one_of_many_partitions_waits_for_no_other_fetch_to_end(partitions: int, pause_ms: int) -> None:
    """Each partition that is read leaves the fetch that waits for all, and waits in one of its own."""

    async def scenario(broker: Broker, fetcher: Fetcher, everything: list[Partition]) -> None:
        loop = asyncio.get_running_loop()
        ends = dict.fromkeys(everything, 0)
        chance, waits = random.Random(1), []
        for _ in range(200):
            where = chance.choice(everything)
            appended_at = loop.time()
            await broker.append(where)
            while fetcher.reach(where) == ends[where]:
                broker.woken.clear()
                await broker.woken.wait()
            waits.append(loop.time() - appended_at)
            await asyncio.sleep(0.003)  # the reader is at work; the fetch for all others goes on without its partition
            ends[where] += len(fetcher.read(where, ends[where], 100, 1 << 20) or ())
            await asyncio.sleep(pause_ms / 1000)
        assert max(waits) <= 0.025
        assert sorted(waits)[len(waits) // 2] <= 2 * _TRIP_S
        # While nothing comes, one fetch is enough for all of them again.
        await asyncio.sleep(1.1)
        asked = len(broker.asked)
        await asyncio.sleep(10)
        assert len(broker.asked) - asked <= 21 and broker.asked[-1] == everything

    following(partitions, scenario)


@pytest.mark.parametrize("error", [errors.TopicAuthorizationFailedError, errors.OffsetOutOfRangeError, None])
def test_a_partition_that_fails_costs_the_others_nothing_and_is_asked_for_ever_more_rarely(error: Any) -> None:
    """`error` None: it has no leader."""

    async def scenario(broker: Broker, fetcher: Fetcher, everything: list[Partition]) -> None:
        loop, (bad, good) = asyncio.get_running_loop(), everything
        if error is None:
            broker.unled.add(bad)
        else:
            broker.failing[bad] = error
        await asyncio.sleep(1)
        assert not fetcher.troubles()
        await asyncio.sleep(9)
        assert list(fetcher.troubles()) == [bad]
        asked, waits = len(broker.asked), []
        for number in range(100):
            appended_at = loop.time()
            await broker.append(good)
            while fetcher.reach(good) == number:
                broker.woken.clear()
                await broker.woken.wait()
            waits.append(loop.time() - appended_at)
            fetcher.read(good, number, 100, 1 << 20)
            await asyncio.sleep(0.1)
        assert max(waits) <= 0.025
        assert sum(bad in each for each in broker.asked[asked:]) <= 2 * 10 / 0.9, "it rests for about a second"
        broker.failing.clear()
        broker.unled.clear()
        await broker.append(bad)
        await asyncio.sleep(2)
        assert fetcher.reach(bad) == 1 and not fetcher.troubles()

    following(2, scenario)
