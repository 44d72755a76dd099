"""An operator makes a replica the truth: how much of a long ledger that takes, and what the other replicas do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.topics.internal_topics import LEDGER
from duemq.delay.replica.replica import Replica
from duemq.delay.shard.takeover import append_barrier, rebase
from duemq.model.errors import Behind
from duemq.model.log.ledger import START, Entry, read_ledger
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.record import StoredRecord, pack_record, unpack_record
from duemq.storage.keyspace import LedgerPosition
from duemq.storage.rocksdb import Memory
from duemq.storage.shard.store import ShardStore

pytestmark = pytest.mark.anyio

DAY, NOW = 20_000, 1_700_000_000_000
"""Entries of a ledger, many more than the search for its end reads; ms."""


class CountingBus(MemoryBus):
    records = 0

    async def read(
        self, topic: str, partition: int, offset: int, max_records: int, max_bytes: int = 8 << 20
    ) -> list[StoredRecord]:
        found = await super().read(topic, partition, offset, max_records, max_bytes)
        self.records += len(found)
        return found


def replica_at(path: Path, number: int) -> Replica:
    store = ShardStore(path, Memory(1 << 20, 4 << 20))
    store.write([], [], LedgerPosition(replace(START, number=number, at=NOW), number + 1), {})
    return Replica(0, store, IdCodec(b"s" * 32))


def frame(number: int) -> bytes:
    return pack_record(None, (), replace(START, number=number, at=NOW).encode())


@pytest.mark.parametrize("barriers", [0, 1_000])
async def test_the_last_entry_of_a_long_ledger_is_found_from_its_end(tmp_path: Path, barriers: int) -> None:
    log = MemoryLog()
    bus = CountingBus(log)
    await bus.create_topic(LEDGER, 1)
    log.add({(LEDGER, 0): [frame(number) for number in range(DAY)]})
    replica = replica_at(tmp_path / "000", 7)
    for _ in range(barriers):  # a shard whose masters were fenced again and again
        await append_barrier(replica, await bus.committer("other"), NOW)
    await rebase(replica, bus, await bus.committer("shard-0"), NOW)
    assert replica.entry.number == DAY and replica.entry.base == 7
    assert bus.records < DAY / 10, "a day's ledger is not read to find its end"
    (last,) = await bus.read(LEDGER, 0, await bus.end_offset(LEDGER, 0) - 1, 1)
    assert read_ledger(unpack_record(last.frame).payload) == replica.entry
    replica.store.close()


async def test_a_ledger_without_entries_goes_on_from_the_replica(tmp_path: Path) -> None:
    bus = MemoryBus(MemoryLog())
    await bus.create_topic(LEDGER, 1)
    replica = replica_at(tmp_path / "000", 7)
    await rebase(replica, bus, await bus.committer("shard-0"), NOW)
    assert (replica.entry.number, replica.entry.base) == (8, 7)
    replica.store.close()


@pytest.mark.parametrize("number", [6, 8, 9, 12])
async def test_a_replica_at_another_entry_is_behind_and_copies_the_truth(tmp_path: Path, number: int) -> None:
    """Also one that is further: its later entries are void. It has not diverged, and no other cluster has written."""
    bus = MemoryBus(MemoryLog())
    await bus.create_topic(LEDGER, 1)
    truth, other = replica_at(tmp_path / "000", 7), replica_at(tmp_path / "001", number)
    await rebase(truth, bus, await bus.committer("shard-0"), NOW)
    assert isinstance(truth.entry, Entry) and truth.entry.number == 8
    other.read_to = 0
    with pytest.raises(Behind, match="by an operator's order entry 8 follows entry 7"):
        await other.follow(bus)
    for replica in (truth, other):
        replica.store.close()
