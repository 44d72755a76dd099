"""Who may become master: no replica that is stale or empty, whatever the log still holds and whoever answers for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.topics.internal_topics import BUFFER, LEDGER
from duemq.delay.imports.file_copies import NoPeers
from duemq.election.base import Member, NodeHealth, NodeState
from duemq.model.errors import Rejected
from duemq.model.log.ledger import Answer
from duemq.model.messages.message import CANCEL, Draft, schedule_frame
from duemq.model.messages.record import StoredRecord, unpack_record
from tests.support.node.memory_nodes import ManualClock, MemoryNode, empty, values

pytestmark = pytest.mark.anyio

LEADS = "to be master"
CLOCK = ManualClock()


def draft(text: str, delay_ms: int = 0) -> Draft:
    return Draft("orders", text.encode(), CLOCK() + delay_ms)


def node(log: MemoryLog, path: Path, **options: Any) -> MemoryNode:
    return MemoryNode(log, path, clock=CLOCK, **options)


def new_log() -> MemoryLog:
    return MemoryLog(CLOCK)


async def stale_and_current(log: MemoryLog, tmp_path: Path) -> int:
    """A node `a` that delivered m1 and cancelled m2 while `b` was away. Returns the entry that `b` stopped at."""
    async with node(log, tmp_path / "a") as a:
        await a.lead()
        async with node(log, tmp_path / "b") as b:
            await b.ready()
            _, m2 = await a.gateway.send([draft("m1", 1_000), draft("m2", 2_000)])
            await b.until(lambda: b.shard.replica.entry.pending == 2, "b to follow")
            number = b.shard.replica.entry.number
        assert not isinstance(m2, Rejected)
        (outcome,) = await a.gateway.change(CANCEL, [m2.id])
        assert outcome.answer is Answer.OK
        CLOCK.now += 1_000
        await a.until(lambda: values(log, "orders") == ["m1"], "m1 to be delivered")
        await a.until(lambda: a.shard.replica.entry.pending == 0, "the entry of it")
    return number


async def test_a_stale_replica_is_not_current_because_the_ledger_is_empty(tmp_path: Path) -> None:
    log = new_log()
    number = await stale_and_current(log, tmp_path)
    for topic in (LEDGER, BUFFER):
        await empty(log, topic)
    async with node(log, tmp_path / "b") as b:
        b.election.give(0)
        await b.until(lambda: b.node.health.unfit, "b to find that it missed something")
        assert "the ledger begins after entry" in (b.node.why_not_ready or "")
        assert not b.shard.leading and b.shard.replica.entry.number == number
        async with node(log, tmp_path / "a") as a:
            await a.lead()  # it has read all there was
            await a.gateway.send([draft("m3")])
            await a.until(lambda: values(log, "orders") == ["m1", "m3"], "what was accepted later")
        assert b.shard.replica.entry.number == number
    assert values(log, "orders") == ["m1", "m3"], "nothing twice, and nothing that was cancelled"


async def test_an_empty_replica_is_not_current_because_the_log_is_empty(tmp_path: Path) -> None:
    log = new_log()
    async with node(log, tmp_path / "a") as a:
        await a.lead()
        await a.gateway.send([draft("far", 1_500)])
        await a.until(lambda: a.shard.replica.entry.pending == 1, "the message to be pending")
    for topic in (LEDGER, BUFFER):
        await empty(log, topic)
    async with node(log, tmp_path / "new") as new:
        new.election.give(0)
        await new.until(lambda: new.node.health.unfit, "the empty replica to find that it missed something")
        assert not new.shard.leading and new.node.why_not_ready is not None
        async with node(log, tmp_path / "a") as a:
            await a.lead()
            CLOCK.now += 1_500
            await a.until(lambda: values(log, "orders") == ["far"], "the message of the good replica")


async def test_a_ledger_that_was_trimmed_to_its_last_entry_tells_who_is_current(tmp_path: Path) -> None:
    """What masters leave of it: a replica that has the last entry is current, another one is not."""
    log = new_log()
    number = await stale_and_current(log, tmp_path)
    ledger = log.topics[LEDGER][0]
    await MemoryBus(log).trim(LEDGER, 0, ledger.end - 1)
    async with node(log, tmp_path / "b") as b, node(log, tmp_path / "a") as a:
        await a.ready()
        b.election.give(0)
        await b.until(lambda: b.node.health.unfit, "b to find that it missed something")
        assert b.shard.replica.entry.number == number and not b.shard.leading
        await a.lead()


async def test_masters_trim_the_ledger_and_leave_its_last_entry(tmp_path: Path) -> None:
    log = new_log()
    async with node(log, tmp_path / "a") as a:
        await a.lead()
        for text in ("m1", "m2", "m3"):
            await a.gateway.send([draft(text)])
            await a.until(lambda: not a.shard.replica.entry.pending and values(log, "orders"), "its delivery")
        await a.until(lambda: a.shard.replica.entry.pending == 0, "the last entry")
        await a.shard.trim_ledger(CLOCK() + 60_000)
        assert [one.offset for one in log.topics[LEDGER][0].frames] == [a.shard.store.position.ledger_offset - 1]
    async with node(log, tmp_path / "a") as a:
        await a.lead()


@pytest.mark.parametrize("how", ["hands over", "is killed after the ledger was looked at"])
async def test_a_ledger_emptied_under_its_master_gets_an_entry_for_the_successor(tmp_path: Path, how: str) -> None:
    log = new_log()
    async with node(log, tmp_path / "a") as a, node(log, tmp_path / "b") as b:
        await a.lead()
        await a.gateway.send([draft("m1"), draft("far", 60_000)])
        await a.until(lambda: values(log, "orders") == ["m1"], "its delivery")
        await b.until(lambda: b.shard.replica.entry == a.shard.replica.entry, "b to follow")
        number = b.shard.replica.entry.number
        for topic in (LEDGER, BUFFER):
            await empty(log, topic)
            log.topics[topic][0].start += 1  # on Kafka the last offset of a log is that of a transaction's mark
        if how == "hands over":
            a.election.give()
            await a.until(lambda: not a.shard.leading, "the hand-over")
        else:
            await a.shard.trim_ledger(CLOCK())
            await b.until(lambda: b.shard.replica.entry.number == number + 1, "the new entry")
            a.shard.stop()
        await b.lead()
        await b.gateway.send([draft("m2")])
        await b.until(lambda: values(log, "orders") == ["m1", "m2"], "what was accepted later")
        assert b.shard.replica.entry.pending == 1


class DeposedBus(MemoryBus):
    """Shows the ledger as a broker does that is cut off from the true leader and does not know it: an older end."""

    end: int | None = None

    def reach(self, topic: str, partition: int) -> int:
        reach = super().reach(topic, partition)
        return min(reach, self.end) if topic == LEDGER and self.end is not None else reach

    async def read(
        self, topic: str, partition: int, offset: int, max_records: int, max_bytes: int = 8 << 20
    ) -> list[StoredRecord]:
        found = await super().read(topic, partition, offset, max_records, max_bytes)
        return [one for one in found if topic != LEDGER or self.end is None or one.offset < self.end]


async def test_a_deposed_leader_makes_nobody_current(tmp_path: Path) -> None:
    log = new_log()
    async with node(log, tmp_path / "b", bus=DeposedBus) as b:
        async with node(log, tmp_path / "a") as a:
            await a.lead()
            await b.ready()
            await a.gateway.send([draft(f"m{number}", 400) for number in range(3)])
            await b.until(lambda: b.shard.replica.entry.pending == 3, "b to follow")
            bus = b.node.bus
            assert isinstance(bus, DeposedBus)
            bus.end = log.topics[LEDGER][0].end
            CLOCK.now += 400
            await a.until(lambda: len(values(log, "orders")) == 3, "their delivery by a")
        b.election.give(0)
        await b.until(lambda: log.topics[LEDGER][0].end > (bus.end or 0) + 1, "the barrier of b")
        await asyncio.wait([b.running], timeout=0.5)
        assert not b.shard.leading and len(values(log, "orders")) == 3, "b does not go by what the deposed leader shows"
        bus.end = None  # the true leader answers
        await b.until(lambda: b.shard.leading, "b " + LEADS)
        assert b.shard.replica.entry.pending == 0
    assert sorted(values(log, "orders")) == ["m0", "m1", "m2"]


async def test_commands_that_nobody_read_are_told_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = new_log()
    async with node(log, tmp_path / "a") as a:
        await a.lead()
        await a.gateway.send([draft("m1")])
        await a.until(lambda: values(log, "orders") == ["m1"], "its delivery")
    bus = MemoryBus(log)
    await bus.append({(BUFFER, 0): [schedule_frame(draft("lost"), CLOCK()) for _ in range(2)]})
    await empty(log, BUFFER)
    async with node(log, tmp_path / "a") as a, node(log, tmp_path / "b") as b:
        await a.lead()
        await a.until(lambda: a.metrics.get_sample_value("duemq_commands_lost_total", {"shard": "0"}) == 2, "the count")
        assert "offsets 1 to 2" in caplog.text and "lost" in caplog.text
        await a.gateway.send([draft("m2")])
        await a.until(lambda: values(log, "orders") == ["m1", "m2"], "what came later")
        assert a.shard.replica.entry.applied == 4
        # A replica that follows from the start needs the command that is gone, and says so.
        await b.until(lambda: b.node.health.unfit, "b to find that it missed something")
    async with node(log, tmp_path / "a") as a:
        await a.lead()  # and it starts again behind the gap


class SlowPeer(NoPeers):
    """Has a replica of the shard; copying it takes until the test says that it failed."""

    def __init__(self) -> None:
        self.copied = False  # the first look of an empty replica is answered at once: there is nothing
        self.asked, self.fails = asyncio.Event(), asyncio.Event()

    def can_copy(self, shard: int) -> bool:
        return self.copied

    async def fetch(self, shard: int, path: Path, least: int, room: Callable[[int], None]) -> bool:
        if self.copied:
            self.asked.set()
            await self.fails.wait()
        return False


async def test_a_replica_that_fell_behind_is_not_ready_while_it_is_copied(tmp_path: Path) -> None:
    """It was ready before: a machine that was paused for longer than the ledger is kept."""
    log, peer = new_log(), SlowPeer()
    async with node(log, tmp_path / "a") as a, node(log, tmp_path / "b", bus=DeposedBus, peers=peer) as b:
        await a.lead()
        await b.ready()
        bus = b.node.bus
        assert isinstance(bus, DeposedBus)
        bus.end, peer.copied = log.topics[LEDGER][0].end, True
        for number in range(3):
            await a.gateway.send([draft(f"m{number}")])
            await a.until(lambda count=number: len(values(log, "orders")) == count + 1, "its delivery")  # type: ignore[misc]
        await MemoryBus(log).trim(LEDGER, 0, log.topics[LEDGER][0].end - 1)
        bus.end = None
        await a.gateway.send([draft("m3")])
        await b.until(peer.asked.is_set, "b to copy its peer")
        assert b.shard.rebuilding
        assert "waits for a peer to copy" in (b.node.why_not_ready or "")
        await b.until(lambda: b.election.health and 0 in b.election.health.unfit, "the others to know it")
        peer.fails.set()
    assert values(log, "orders") == ["m0", "m1", "m2", "m3"]


async def test_an_operator_can_make_a_replica_the_truth(tmp_path: Path) -> None:
    log = new_log()
    number = await stale_and_current(log, tmp_path)
    for topic in (LEDGER, BUFFER):
        await empty(log, topic)
    async with node(log, tmp_path / "b") as b:
        b.election.give(0)
        await b.until(lambda: b.node.health.unfit, "b to find that it missed something")
        b.election.others = [Member("a", "", health=NodeHealth(NodeState.READY))]
        with pytest.raises(Rejected, match="current on node a"):
            b.node.recover(0)
        b.election.others = []
        with pytest.raises(Rejected, match="no replica of shard 7"):
            b.node.recover(7)
        b.node.recover(0)
        await b.until(lambda: b.shard.leading, "b " + LEADS)
        assert b.shard.replica.entry.number > number
        CLOCK.now += 2_000
        await b.until(lambda: len(values(log, "orders")) == 3, "what was pending in b, m1 for the second time")
        with pytest.raises(Rejected, match="needs no recovery"):
            b.node.recover(0)
        # The replica that had gone on is another history by now.
        async with node(log, tmp_path / "a") as a:
            await a.until(lambda: a.node.health.unfit, "a to find that it is no longer the truth")
    async with node(log, tmp_path / "b") as b:
        await b.lead()


async def test_a_node_that_cannot_see_zookeeper_fences_nobody(tmp_path: Path) -> None:
    log = new_log()
    async with node(log, tmp_path / "a") as a:
        await a.ready()
        a.election.away = True
        a.election.give(0)
        await asyncio.wait([a.running], timeout=0.7)
        assert not log.epochs, "no committer was made"
        a.election.away = False
        await a.until(lambda: a.shard.leading, "a " + LEADS)


async def test_the_time_of_each_take_over_is_measured(tmp_path: Path) -> None:
    async with node(new_log(), tmp_path / "a") as a:
        for taken_over in (1, 2):
            await a.lead()
            assert a.metrics.get_sample_value("duemq_take_over_seconds_count") == taken_over
            a.election.give()
            await a.until(lambda: not a.shard.leading, "to be deposed")
        assert 0 < (a.metrics.get_sample_value("duemq_take_over_seconds_sum") or 0) < 60


def test_entries_of_the_ledger_and_barriers_are_told_apart(tmp_path: Path) -> None:
    log = new_log()

    async def run() -> list[bytes]:
        async with node(log, tmp_path / "a") as a:
            await a.lead()
            await a.gateway.send([draft("m1")])
            await a.until(lambda: values(log, "orders") == ["m1"], "its delivery")
        return [unpack_record(one.frame).payload for one in log.topics[LEDGER][0].frames]

    first, *rest = asyncio.run(run())
    assert first.startswith(b'{"v":2,"barrier":-1,"at":') and all(b'"n":' in one for one in rest)


async def test_a_standby_knows_the_topics_that_the_master_wrote_to(tmp_path: Path) -> None:
    """It looks there when it takes over, and in no topic of others; also after a restart."""
    log = new_log()
    async with node(log, tmp_path / "a") as a, node(log, tmp_path / "b") as b:
        await a.lead()
        await a.gateway.send([Draft(topic, b"m", CLOCK() + 1_000) for topic in ("orders", "bills")])
        CLOCK.now += 1_000
        await a.until(lambda: a.shard.replica.entry.outcomes.delivered == 2, "both to be delivered")
        await b.until(lambda: b.shard.replica.entry == a.shard.replica.entry, "b to follow")
        for each in (a, b):
            assert each.shard.replica.written.names() == {"orders", "bills"}
    async with node(log, tmp_path / "b") as b:
        await b.ready()
        assert b.shard.replica.written.names() == {"orders", "bills"}
