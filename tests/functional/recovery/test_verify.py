"""`duemq verify` finds what is wrong in a folder, and nothing where nothing is."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from rocksdict import WriteBatch

from duemq.bus.embedded.bus import EmbeddedBus
from duemq.delay.core.disk_watermarks import NEVER
from duemq.delay.node import Node, NodeOptions
from duemq.delay.node_backend import NodeBackend
from duemq.delay.recovery.verify import Check, verify
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.election.single import SingleElection
from duemq.model.messages.message import CANCEL, MOVE, Draft
from duemq.model.messages.names import of_client
from duemq.model.messages.record import pack_record
from duemq.model.timing import WINDOW_MS
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.storage.data_folder import Folder
from duemq.storage.keyspace import DROPPED, DROPS, ENDED, MOVED, ROW, U64
from duemq.storage.rocksdb import Memory
from duemq.storage.shard.records import IMPORTED
from duemq.storage.shard.store import ShardStore
from tests.support.node.backup_world import running
from tests.support.patience import SERVERS_S
from tests.support.shard.import_schedule import write_messages


def now() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder at rest with messages of every outcome."""
    path = tmp_path_factory.mktemp("filled") / "data"
    asyncio.run(_fill(path))
    return path


async def _fill(path: Path) -> None:
    folder = Folder.open(path, 1)
    options = NodeOptions(marks=NEVER, delay_files=TieringPolicy(rows=30, quiet_ms=0))
    node = Node(folder, lambda: EmbeddedBus.open(path / "bus"), SingleElection(1), options, CollectorRegistry(), now)
    stop = asyncio.Event()
    running = asyncio.create_task(node.run(stop))
    await node.ready.wait()
    gateway = CommandGateway(NodeBackend(node))
    later = now() + 3_600_000
    await gateway.send([Draft("t", b"soon", now() + i) for i in range(20)])
    delay_files = await gateway.send([Draft("t", b"far", later + i) for i in range(20)])
    await gateway.send([Draft("t", b"named", later, name=of_client("a"), fingerprint=b"f" * 16)])
    sealed = await gateway.send([Draft("t", b"sealed", later + 4 * 3_600_000) for i in range(30)])
    while not node.shards[0].store.delay_files:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await gateway.change(CANCEL, [receipt.id for receipt in sealed[:3] if isinstance(receipt, Receipt)])
    ids = [receipt.id for receipt in delay_files if isinstance(receipt, Receipt)]
    await gateway.change(CANCEL, ids[:5])
    await gateway.change(MOVE, ids[5:10], later + 7_200_000)
    records = node.bus.subscribe("t")
    while await node.bus.end_offset("t", 0) < 20:
        assert await records.wait(SERVERS_S), "not delivered in time"
    stop.set()
    await running
    folder.close()


def wrong(path: Path) -> list[Check]:
    async def run() -> list[Check]:
        folder = Folder.open(path)
        bus = await EmbeddedBus.open(path / "bus")
        try:
            return await verify(folder, bus, Memory(8 << 20, 8 << 20), lambda what, rows: None)
        finally:
            await bus.close()
            folder.close()

    return [check for check in asyncio.run(run()) if not check.good]


@pytest.fixture
def copy(filled: Path, tmp_path: Path) -> Path:
    return shutil.copytree(filled, tmp_path / "data")


def test_a_sound_folder_passes_every_check(copy: Path) -> None:
    assert wrong(copy) == []


def _lose_a_pending_row(store: ShardStore) -> None:
    store.delete([ROW + [key for key, _ in store.each(ROW)][-1]])


def _revive_a_cancelled_one(store: ShardStore) -> None:
    key = next(store.each(ENDED))[0]
    row = next(store.each(ROW))[1]
    store.write([(ROW + key, row)], [], store.position, {})


def _lead_a_move_nowhere(store: ShardStore) -> None:
    first_key, _ = next(store.each(MOVED))
    store.write([(MOVED + first_key, bytes(20))], [], store.position, {})


def _drop_a_message_that_is_in_no_file(store: ShardStore) -> None:
    (key, _), *_ = store.each(DROPPED)
    batch = WriteBatch(raw_mode=True)
    batch.put(DROPPED + key[:-1] + b"\x01", b"")
    store.change(batch)


def _forget_to_count_a_dropped_one(store: ShardStore) -> None:
    batch = WriteBatch(raw_mode=True)
    batch.put(DROPS + U64.pack(store.delay_files.windows()[0]), U64.pack(2))
    store.change(batch)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_drop_a_message_that_is_in_no_file, "are in delay files"),
        (_forget_to_count_a_dropped_one, "are in delay files"),
        (_lose_a_pending_row, "pending rows"),
        (_revive_a_cancelled_one, "nowhere else"),
        (_lead_a_move_nowhere, "lead to a message"),
    ],
)
def test_damage_in_the_store_is_found(copy: Path, damage: Callable[[ShardStore], None], words: str) -> None:
    store = ShardStore(copy / "shards" / "000", Memory(8 << 20, 8 << 20))
    damage(store)
    store.close()
    assert any(words in check.what for check in wrong(copy))


def test_a_record_too_many_is_found(copy: Path) -> None:
    async def send_again() -> None:
        bus = await EmbeddedBus.open(copy / "bus")
        first = (await bus.read("t", 0, 0, 1))[0]
        await bus.append({("t", 0): [first.frame, pack_record(None, (), b"not ours")]})
        await bus.close()

    asyncio.run(send_again())
    assert [check.what for check in wrong(copy)] == ["records: no message twice"]


def test_a_lost_record_is_found(copy: Path) -> None:
    """A message the store calls delivered, of which the topic has nothing."""
    store = ShardStore(copy / "shards" / "000", Memory(8 << 20, 8 << 20))
    key, row = next(store.each(ROW))
    # The same row with another id: flip a character within it.
    at = row.index(b"duemq-id") + len(b"duemq-id") + 20
    store.write([(ROW + key, row[:at] + bytes([row[at] ^ 1]) + row[at + 1 :])], [], store.position, {})
    store.close()
    assert any(check.what == "records: every delivered message is there" for check in wrong(copy))


def test_a_file_that_was_imported_since_the_last_flush_is_verified(tmp_path: Path) -> None:
    """The ledger says so, the file is there, and the store knows nothing of it yet."""
    data, shared, killed = tmp_path / "data", tmp_path / "shared", tmp_path / "killed"
    due = (now() // WINDOW_MS + 6) * WINDOW_MS

    async def import_file() -> None:
        async with running(data, import_commands=shared) as (_, gateway):
            drafts = [Draft("t", b"x", due + number) for number in range(9)]
            given = await gateway.import_file(write_messages(shared / "f.parquet", drafts))
            while (  # noqa: ASYNC110  # nobody tells
                (found := await gateway.import_record(given.id)) is None
                or found.import_record is None
                or found.import_record.state != IMPORTED
            ):
                await asyncio.sleep(0.02)
            shutil.rmtree(shared)
            shutil.copytree(data, killed, ignore=shutil.ignore_patterns("control.sock"))

    asyncio.run(import_file())
    lost = shutil.copytree(killed, tmp_path / "lost")
    assert wrong(killed) == []
    next(lost.rglob("a*.parquet")).unlink()
    assert any("was imported, but is not here" in check.detail for check in wrong(lost))
