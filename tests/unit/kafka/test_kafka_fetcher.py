"""What `Tails` asks of a broker that holds each fetch back until there is something. Time passes as the test says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from duemq.bus.kafka.fetch.fetcher import Tails
from duemq.bus.kafka.requests.wire import FetchedRecords, Wire
from duemq.model.record import Partition

_BROKER = 1


class ParkedFetch:
    """A fetch that the broker holds back until `deadline` (ms). `answer` is done once it was answered."""

    def __init__(self, offsets: dict[Partition, int], deadline: float, connection: str) -> None:
        self.offsets, self.deadline, self.connection = offsets, deadline, connection
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Broker:
    """In place of the wire. `now` is its clock, ms; `asked` has the partitions of each fetch, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[list[Partition]] = []
        self.parked: list[ParkedFetch] = []
        self._batches: dict[Partition, list[bytes]] = {}

    def leader(self, topic: str, partition: int) -> int:
        return _BROKER

    async def offsets(self, partitions: Iterable[Partition], at: int) -> dict[Partition, int]:
        return {where: len(self._batches.get(where, ())) for where in partitions}

    async def fetch(
        self, node: int, offsets: dict[Partition, int], wait_ms: int, max_bytes: int, connection: str
    ) -> dict[Partition, FetchedRecords]:
        assert connection not in {each.connection for each in self.parked}, "answered in turn: it would wait"
        self.asked.append(sorted(offsets))
        if not self._news(offsets):
            parked = ParkedFetch(offsets, self.now + wait_ms, connection)
            self.parked.append(parked)
            try:
                await parked.answer
            finally:
                self.parked.remove(parked)
        return {
            where: FetchedRecords(None, 0, 0, [], b"".join(self._batches.get(where, [])[offset:]))
            for where, offset in offsets.items()
        }

    def append(self, where: Partition) -> None:
        """One batch of one record."""
        batches = self._batches.setdefault(where, [])
        batches.append(_batch(len(batches)))
        self._answer()

    def pass_time(self, ms: float) -> None:
        self.now += ms
        self._answer()

    def _answer(self) -> None:
        for parked in self.parked:
            if not parked.answer.done() and (self.now >= parked.deadline or self._news(parked.offsets)):
                parked.answer.set_result(None)

    def _news(self, offsets: dict[Partition, int]) -> bool:
        return any(len(self._batches.get(where, ())) > offset for where, offset in offsets.items())


def _batch(offset: int) -> bytes:
    builder: Any = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    builder.append(0, 1, None, b"value", [])
    raw = builder.build()
    raw[:8] = offset.to_bytes(8, "big")  # not part of what the checksum is of
    return bytes(raw)


async def _settle() -> None:
    """Let every task come to where it waits."""
    for _ in range(50):
        await asyncio.sleep(0)


def following(partitions: int, scenario: Callable[[Broker, Tails, list[Partition]], Awaitable[None]]) -> None:
    """Run a scenario with readers of so many partitions, each of whom has read all that there is."""

    async def run() -> None:
        broker = Broker()
        tails = Tails(cast(Wire, broker), 1 << 20, lambda grown: None, lambda where: 0)
        everything = [("t", number) for number in range(partitions)]
        for where in everything:
            tails.follow(where, 0)
            tails.read(where, 0, 100, 1 << 20)
        pump = asyncio.create_task(tails.run())
        try:
            await _settle()
            await scenario(broker, tails, everything)
        finally:
            pump.cancel()
            await asyncio.wait([pump])

    asyncio.run(run())


def test_one_fetch_waits_for_all_partitions() -> None:
    async def scenario(broker: Broker, tails: Tails, everything: list[Partition]) -> None:
        assert broker.asked == [everything]

    following(16, scenario)


def test_a_reader_of_one_of_many_partitions_waits_for_no_other_fetch_to_end() -> None:
    """Each partition that is read leaves the fetch that waits for all, and waits in one of its own."""

    async def scenario(broker: Broker, tails: Tails, everything: list[Partition]) -> None:
        ends = dict.fromkeys(everything, 0)
        chance, waits = random.Random(1), []
        for _ in range(200):
            where = chance.choice(everything)
            broker.append(where)
            asked_at = broker.now
            await _settle()
            while not (records := tails.read(where, ends[where], 100, 1 << 20)):
                broker.pass_time(5)
                await _settle()
            waits.append(broker.now - asked_at)
            ends[where] += len(records)
            broker.pass_time(2)
            await _settle()
        assert max(waits) <= 100

    following(16, scenario)


def test_a_partition_nothing_comes_to_is_asked_for_twice_a_second() -> None:
    async def scenario(broker: Broker, tails: Tails, everything: list[Partition]) -> None:
        for _ in range(1_000):
            broker.pass_time(10)
            await _settle()
        assert len(broker.asked) == 21 and all(asked == everything for asked in broker.asked)

    following(16, scenario)
