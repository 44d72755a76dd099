"""What only the embedded bus has: a folder, a disk that fills, damage, and space to give back."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from duemq.bus.embedded import layout
from duemq.bus.embedded.bus import EmbeddedBus
from duemq.bus.embedded.compactor import Compactor
from duemq.bus.embedded.rocksdb_log import log_options, open_log
from duemq.model.errors import CorruptStore, DiskFull, FolderRefused, StoreFailed
from duemq.model.messages.names import consumer_cursor, group_cursor

Scenario = Callable[[EmbeddedBus], Awaitable[None]]
T0 = ("t", 0)

DYING = """
import os, sys
from pathlib import Path
from duemq.bus.embedded.rocksdb_log import open_log
db = open_log(Path(sys.argv[1]))
for at in range(50):
    db.put(b"x%d" % at, os.urandom(1_000))
db.flush_wal(True)
os._exit(0)
"""


def with_bus(folder: Path, scenario: Scenario, fault: Callable[[str], None] | None = None) -> None:
    """Runs it on a bus that has a topic `t` with two partitions and keeps no tail."""

    async def run() -> None:
        bus = await EmbeddedBus.open(folder, buffer_bytes=0, failpoint=fault)
        try:
            await bus.create_topic("t", 2)
            await scenario(bus)
        finally:
            await bus.close()

    asyncio.run(run())


def test_a_folder_that_is_open_is_refused_and_free_after_close(tmp_path: Path) -> None:
    async def scenario(bus: EmbeddedBus) -> None:
        with pytest.raises(FolderRefused, match="has it open"):
            await EmbeddedBus.open(tmp_path)

    with_bus(tmp_path, scenario)
    with_bus(tmp_path, scenario)


def test_a_foreign_or_newer_folder_is_refused(tmp_path: Path) -> None:
    db = open_log(tmp_path)
    db.put(layout.VERSION_KEY, b"\0\x63")
    db.close()
    with pytest.raises(FolderRefused, match="layout 99"):
        open_log(tmp_path)
    options = log_options()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    db = type(db)(str(foreign), options)
    db.put(b"something", b"else")
    db.close()
    with pytest.raises(FolderRefused, match="not a log of duemq"):
        open_log(foreign)


def test_the_cursors_of_destinations_move_once_to_names_that_no_client_can_have(tmp_path: Path) -> None:
    name, cursor_key = "destination.billing", layout.cursor_key
    client, group = consumer_cursor(name), group_cursor(name)
    db = open_log(tmp_path)
    db.put(layout.VERSION_KEY, b"\0\x01")
    stored = {("a", client): b"1.ranges", ("b", client): b"2", ("a", consumer_cursor("mine")): b"3"}
    for where, cursor in stored.items():
        db.put(cursor_key(*where), cursor)
    db.close()

    async def moved(bus: EmbeddedBus) -> None:
        assert {where: await bus.get_consumer_cursor(*where) for where in stored} == stored
        assert [await bus.get_consumer_cursor(topic, group) for topic in ("a", "b", "c")] == [b"1.ranges", b"2", None]
        await bus.set_consumer_cursor("a", client, b"4")
        await bus.set_consumer_cursor("c", client, b"4")

    async def kept(bus: EmbeddedBus) -> None:
        assert [await bus.get_consumer_cursor(topic, group) for topic in ("a", "c")] == [b"1.ranges", None]

    with_bus(tmp_path, moved)
    with_bus(tmp_path, kept)


def test_a_full_disk_is_named_and_everything_behind_it_refused(tmp_path: Path) -> None:
    armed = False

    def fault(step: str) -> None:
        if armed and step == "before_write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def scenario(bus: EmbeddedBus) -> None:
        nonlocal armed
        armed = True
        with pytest.raises(DiskFull, match="disk is full"):
            await bus.append({T0: [b"x"]})
        with pytest.raises(StoreFailed, match="reopened"):
            await bus.append({T0: [b"x"]})

    with_bus(tmp_path, scenario, fault)


def test_damage_and_loss_are_named_with_their_place(tmp_path: Path) -> None:
    async def fill(bus: EmbeddedBus) -> None:
        for at in range(4):
            await bus.append({T0: [b"frame %d" % at] * 5})

    with_bus(tmp_path, fill)
    db = open_log(tmp_path)
    prefix = layout.record_prefix(1, 0)
    value = db[prefix + (5).to_bytes(8, "big")]
    assert value is not None
    db[prefix + (5).to_bytes(8, "big")] = value[:-1] + b"X"
    del db[prefix + (10).to_bytes(8, "big")]
    db.close()

    async def read(bus: EmbeddedBus) -> None:
        assert len(await bus.read("t", 0, 0, 5)) == 5
        for offset in (5, 6, 10):
            with pytest.raises(CorruptStore, match=f"'t', partition 0, offset {offset}"):
                await bus.read("t", 0, offset, 5)
        assert len(await bus.read("t", 0, 15, 9)) == 5

    with_bus(tmp_path, read)


def test_a_flipped_bit_in_the_write_ahead_log_is_not_taken_for_its_end(tmp_path: Path) -> None:
    # A process that dies leaves its write-ahead log behind.
    subprocess.run([sys.executable, "-c", DYING, str(tmp_path)], check=True)
    wal = max(tmp_path.glob("*.log"), key=lambda file: file.stat().st_size)
    content = bytearray(wal.read_bytes())
    content[20_000] ^= 1
    wal.write_bytes(content)
    with pytest.raises(CorruptStore):
        open_log(tmp_path)


def test_space_of_trimmed_records_returns_in_the_background(tmp_path: Path) -> None:
    async def scenario(bus: EmbeddedBus) -> None:
        bus.compactor = compactor = Compactor(bus.db, worth_bytes=4 << 20)
        for _ in range(8):
            await bus.append({T0: [os.urandom(1 << 20)], ("t", 1): [os.urandom(1 << 16)]})
        before = bus.disk_bytes()
        await bus.trim("t", 0, 8)
        assert compactor.task is not None
        await compactor.task
        await asyncio.to_thread(bus.db.flush)
        assert bus.disk_bytes() < before - (6 << 20)
        assert len(await bus.read("t", 1, 0, 99)) == 8

    with_bus(tmp_path, scenario)


def test_space_of_few_trimmed_records_returns_on_demand(tmp_path: Path) -> None:
    async def scenario(bus: EmbeddedBus) -> None:
        await bus.append({T0: [os.urandom(1 << 20)] * 8})
        await asyncio.to_thread(bus.db.flush)
        before = bus.disk_bytes()
        await bus.reclaim()
        await bus.trim("t", 0, 8)
        assert bus.compactor.task is None, "too little to be worth it"
        await bus.reclaim()
        assert bus.disk_bytes() < before - (6 << 20)
        await bus.reclaim()

    with_bus(tmp_path, scenario)


@pytest.mark.heavy
def test_closing_does_not_wait_for_a_long_compaction(tmp_path: Path) -> None:
    async def scenario(bus: EmbeddedBus) -> None:
        bus.compactor = Compactor(bus.db, worth_bytes=1)
        await bus.append({T0: [os.urandom(1 << 20)] * 20})
        await bus.trim("t", 0, 19)

    with_bus(tmp_path, scenario)

    async def again(bus: EmbeddedBus) -> None:
        assert [record.offset for record in await bus.read("t", 0, 0, 99)] == [19]

    with_bus(tmp_path, again)


def test_a_cancelled_caller_does_not_disturb_the_others(tmp_path: Path) -> None:
    async def scenario(bus: EmbeddedBus) -> None:
        calls = [asyncio.create_task(bus.append({T0: [b"%d" % at]})) for at in range(3)]
        await asyncio.sleep(0)
        calls[1].cancel()
        await asyncio.wait(calls)
        assert calls[2].result()[T0].first_offset == await bus.end_offset("t", 0) - 1

    with_bus(tmp_path, scenario)
