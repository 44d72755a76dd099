"""A proxy's view of the ledger, on a log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.shards.progress import Progress
from duemq.cluster.topics.internal_topics import LEDGER
from duemq.model.errors import LogFailed
from duemq.model.log.ledger import Answer, Entry
from duemq.model.messages.key import make_key
from duemq.model.messages.record import StoredRecord, pack_record
from duemq.proxy.gateway.ledger_follower import LedgerFollower
from tests.support.patience import WITHIN_S


class GappyBus(MemoryBus):
    """Has marker offsets, as a broker's log has: frames of b"marker" are never read. Reads fail on order."""

    failing = 0

    async def read(
        self, topic: str, partition: int, offset: int, max_records: int, max_bytes: int = 8 << 20
    ) -> list[StoredRecord]:
        if self.failing:
            self.failing -= 1
            raise LogFailed("the broker is away")
        found = await super().read(topic, partition, offset, 1_000_000, max_bytes)
        return [record for record in found if record.frame != b"marker"][:max_records]


def entry(number: int) -> Entry:
    return Entry(number, number + 1, make_key(number, 0, 0), number, {number: Answer.OK}, pending=number)


async def commit(bus: MemoryBus, number: int, shard: int = 0) -> None:
    await bus.append({(LEDGER, shard): [pack_record(None, (), entry(number).encode()), b"marker"]})


def following(scenario: Callable[[GappyBus, LedgerFollower], Awaitable[None]], before: int = 0, gap: int = 0) -> None:
    """Run a scenario with a follower of two shards, whose first has `before` entries and then a gap."""

    async def run() -> None:
        bus = GappyBus(MemoryLog())
        await bus.create_topic(LEDGER, 2)
        for number in range(before):
            await commit(bus, number)
        await bus.append({(LEDGER, 0): [b"marker"] * gap})
        follower = LedgerFollower(bus, 2)
        assert follower.why_not_ready() is not None
        task = asyncio.create_task(follower.run())
        try:
            async with asyncio.timeout(WITHIN_S):
                await scenario(bus, follower)
        finally:
            task.cancel()
            await asyncio.wait({task})

    asyncio.run(run())


async def ready(follower: LedgerFollower) -> None:
    while any(follower.why_unseen(shard) for shard in (0, 1)):  # noqa: ASYNC110
        await asyncio.sleep(0)


@pytest.mark.parametrize("gap", [0, 5, 5_000])
def test_it_begins_with_the_last_entry_however_far_back_that_is(gap: int) -> None:
    async def scenario(bus: GappyBus, follower: LedgerFollower) -> None:
        await ready(follower)
        assert follower.entries[0] == entry(99)
        assert follower.progress[0].applied == 100 and follower.progress[1].applied == 0
        await commit(bus, 100)
        await commit(bus, 0, shard=1)
        assert await follower.progress[0].wait_until_applied(100, 5)
        assert await follower.progress[1].wait_until_applied(0, 5)
        answered = follower.progress[0].answer(100)
        assert answered is not None and answered.answer is Answer.OK

    following(scenario, before=100, gap=gap)


def test_a_log_that_is_away_is_waited_for_and_nothing_is_missed() -> None:
    async def scenario(bus: GappyBus, follower: LedgerFollower) -> None:
        await ready(follower)
        bus.failing = 3
        for number in range(3):
            await commit(bus, number)
        while follower.why_unseen(0) is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert "the broker is away" in str(follower.why_unseen(0))
        assert await follower.progress[0].wait_until_applied(2, 5)
        assert all(follower.progress[0].answer(number) for number in range(3))
        await ready(follower)

    following(scenario)


def test_while_nobody_waits_the_ledgers_of_all_shards_are_read_at_the_same_moments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments: list[float] = []
    wait = Progress.wait_for_waiter

    async def note_moment(self: Progress, timeout_s: float) -> None:
        moments.append(asyncio.get_running_loop().time() + timeout_s)
        await wait(self, timeout_s)

    async def scenario(bus: GappyBus, follower: LedgerFollower) -> None:
        await ready(follower)
        monkeypatch.setattr(Progress, "wait_for_waiter", note_moment)
        for number in range(3):
            for shard in (0, 1):
                await commit(bus, number, shard)
                await asyncio.sleep(0.03)  # each shard has its own pace
        while len(moments) < 4 or any(follower.entries[shard].number < 2 for shard in (0, 1)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    following(scenario)
    for moment in moments:
        assert abs(moment * 10 - round(moment * 10)) < 0.01, "a tenth of a second of the same clock"


def test_a_stranger_in_a_ledger_stops_the_answers_of_its_shard_alone_and_loudly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(bus: GappyBus, follower: LedgerFollower) -> None:
        await ready(follower)
        await bus.append({(LEDGER, 0): [pack_record(None, (), b"hello")]})
        while follower.why_unseen(0) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert follower.unreadable() == [0] and follower.why_not_ready() is None
        await commit(bus, 0, shard=1)
        assert await follower.progress[1].wait_until_applied(0, 5)
        assert [one.levelname for one in caplog.records if "ledger of shard 0" in one.message] == ["ERROR"]

    following(scenario)
