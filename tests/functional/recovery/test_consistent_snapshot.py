"""What a running node gives to a backup: stores and log that belong together, whatever it does meanwhile."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from duemq.bus.base import Bus
from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.shards.shard_reader import Query
from duemq.delay.api.control_socket import SOCKET, Control, server_snapshot
from duemq.delay.node import Node
from duemq.delay.recovery.consistent_snapshot import freeze
from duemq.delay.shard.states import ShardState
from duemq.model.errors import Unavailable
from duemq.model.messages.message import CANCEL, DELIVER_NOW, MOVE, Draft
from duemq.model.timing import WINDOW_MS
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.storage.backup.backups import Backups, NewBackup
from duemq.storage.backup.restore import restore
from duemq.storage.data_folder import read_info
from duemq.storage.shard.records import IMPORTED, PENDING
from tests.support.node.backup_world import NOW, delivered, nothing, now, running, send, wrong
from tests.support.patience import SERVERS_S
from tests.support.shard.import_schedule import write_messages

pytestmark = pytest.mark.anyio
HOUR = 3_600_000


async def no_keys(fields: dict[str, Any]) -> dict[str, Any]:
    raise AssertionError("nobody makes a key")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def make(node: Node, at_rest: Path, into: Path) -> NewBackup:
    with Backups(into) as backups:
        return backups.make(node.folder.info, at_rest, NOW, nothing)


class Meanwhile:
    """The log of a node, with work to be done just before and just after it is linked."""

    def __init__(self, node: Node, before: Callable[[], Awaitable[object]], after: Callable[[], Awaitable[object]]):
        self._checkpoint, self._before, self._after = node.bus.checkpoint, before, after

    async def checkpoint(self, into: Path) -> bool:
        await self._before()
        linked = await self._checkpoint(into)
        await self._after()
        return linked


async def test_the_log_reaches_as_far_as_the_stores_and_still_has_what_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cycles and a flush with its trimming, between the links to the stores and those to the log, and after both."""
    data = tmp_path / "data"
    async with running(data, 2) as (node, gateway):
        held = await send(gateway, "t", [now() + HOUR + n for n in range(40)])
        await send(gateway, "t", [now() + n for n in range(20)])
        await delivered(node, "t", 20)
        flushes: list[asyncio.Task[None]] = []

        async def more() -> None:
            known = await node.bus.end_offset("t", 0)
            await gateway.change(DELIVER_NOW, held[known - 20 : known - 10])
            await delivered(node, "t", known + 10)
            flushes.append(asyncio.create_task(node.maintenance.flush()))
            # Without trouble it waits for the freeze; a trim that does not wait needs less than this.
            await asyncio.wait(flushes, timeout=0.3)

        meanwhile = Meanwhile(node, more, more)
        monkeypatch.setattr(node.bus, "checkpoint", meanwhile.checkpoint)
        await freeze(node, tmp_path / "frozen")
        assert await node.bus.end_offset("t", 0) == 40
        await asyncio.gather(*flushes)
        make(node, tmp_path / "frozen", tmp_path / "into")
    (backup,) = (tmp_path / "into").iterdir()
    shutil.rmtree(data)
    restore(backup, tmp_path / "restored", nothing)
    assert await asyncio.to_thread(wrong, tmp_path / "restored") == []
    async with running(tmp_path / "restored", 2) as (node, gateway):
        found = (await gateway.find(Query(limit=1000))).messages
        assert {state.id for state in found} == set(held[10:])  # the log was linked after the first ten were delivered


async def test_a_file_that_is_imported_meanwhile_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the stores were linked and before the log is: what the log says was imported is not to be had any more."""
    data, shared = tmp_path / "data", tmp_path / "shared"
    due = (now() // WINDOW_MS + 6) * WINDOW_MS
    async with running(data, import_commands=shared) as (node, gateway):

        async def import_file() -> None:
            given = await gateway.import_file(
                write_messages(shared / "f.parquet", [Draft("t", b"x", due + n) for n in range(9)])
            )
            while (  # noqa: ASYNC110  # nobody tells
                (found := await gateway.import_record(given.id)) is None
                or found.import_record is None
                or (found.import_record.state == PENDING)
            ):
                await asyncio.sleep(0.02)
            assert found.import_record.state == IMPORTED, found.import_record.reason
            shutil.rmtree(shared)

        async def nothing_more() -> None:
            pass

        monkeypatch.setattr(node.bus, "checkpoint", Meanwhile(node, import_file, nothing_more).checkpoint)
        await freeze(node, tmp_path / "frozen")
        made = await asyncio.to_thread(make, node, tmp_path / "frozen", tmp_path / "into")
    restore(made.path, tmp_path / "restored", nothing)
    async with asyncio.timeout(SERVERS_S), running(tmp_path / "restored") as (_, gateway):
        assert len((await gateway.find(Query(limit=1000))).messages) == 9
    assert await asyncio.to_thread(wrong, tmp_path / "restored") == []


async def test_backups_under_load_hold_all_that_was_accepted_before(tmp_path: Path) -> None:
    data, into, chance = tmp_path / "data", tmp_path / "into", random.Random(5)
    accepted: list[str] = []
    before: list[tuple[Path, list[str]]] = []

    async def sender(gateway: CommandGateway) -> None:
        while True:
            at = now()
            ids = await send(gateway, "t", [at + chance.randrange(2_000) for _ in range(30)])
            ids += await send(gateway, "t", [at + 4 * HOUR + n for n in range(10)])
            accepted.extend(ids)
            await gateway.change(CANCEL, chance.sample(ids, 4))
            await gateway.change(MOVE, chance.sample(ids, 4), at + chance.randrange(3 * HOUR))
            await gateway.change(DELIVER_NOW, chance.sample(accepted, 4))

    async def flusher(node: Node) -> None:
        while True:
            await node.maintenance.flush()
            await asyncio.sleep(0)

    async with running(data, 2) as (node, gateway):
        busy = [asyncio.create_task(sender(gateway)) for _ in range(3)] + [asyncio.create_task(flusher(node))]
        for number in range(4):
            known = await node.bus.end_offset("t", 0) if await node.bus.topic("t") else 0
            await delivered(node, "t", known + 200)
            was = list(accepted)
            at_rest = tmp_path / f"frozen-{number}"
            await freeze(node, at_rest)
            before.append(((await asyncio.to_thread(make, node, at_rest, into)).path, was))
        for task in busy:
            task.cancel()
        assert (await asyncio.wait(busy))[0] == set(busy)
        assert all(task.cancelled() for task in busy)
    for number, (backup, ids) in enumerate(before):
        restored = tmp_path / f"restored-{number}"
        restore(backup, restored, nothing)
        assert await asyncio.to_thread(wrong, restored) == []
        async with running(restored, 2) as (_, gateway):
            for id_ in ids:
                assert await gateway.state(id_) is not None, id_


async def test_a_log_elsewhere_is_not_in_the_backup_and_need_not_be(tmp_path: Path) -> None:
    data, log = tmp_path / "data", MemoryLog()
    async with running(data, open_bus=lambda: bus_on(log)) as (node, gateway):
        ids = await send(gateway, "t", [now() + HOUR + n for n in range(5)])
        await gateway.find(Query())
        await freeze(node, tmp_path / "frozen")
        made = await asyncio.to_thread(make, node, tmp_path / "frozen", tmp_path / "into")
        ids += await send(gateway, "t", [now() + HOUR + n for n in range(5)])
    assert not (made.path / "bus").exists()
    restore(made.path, tmp_path / "restored", nothing)
    async with running(tmp_path / "restored", open_bus=lambda: bus_on(log)) as (_, gateway):
        assert {state.id for state in (await gateway.find(Query())).messages} == set(ids)


async def bus_on(log: MemoryLog) -> Bus:
    return MemoryBus(log)


async def test_a_node_that_is_not_ready_gives_nothing(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as (node, _):
        node.why_not_ready = "the disk is on fire"
        with pytest.raises(Unavailable, match="on fire"):
            await freeze(node, tmp_path / "frozen")
        node.why_not_ready = None
        node.shards[0].state = ShardState.REBUILDING
        with pytest.raises(Unavailable, match="copied from a peer"):
            await freeze(node, tmp_path / "frozen")
        node.shards[0].state = ShardState.LEADING
    assert not (tmp_path / "frozen").exists()
    with pytest.raises(Unavailable):
        await freeze(node, tmp_path / "frozen")


# --- by the socket in the folder ----------------------------------------------------------------------------------


def snapshots(data: Path) -> list[str]:
    return [path.name for path in (data / "snapshots").glob("*")]


@pytest.mark.parametrize("depth", [0, 20])
async def test_what_was_given_is_there_until_it_is_given_back(tmp_path: Path, depth: int) -> None:
    """`depth`: also in a folder whose path is longer than the address of a socket may be."""
    data = tmp_path.joinpath(*["deeper"] * depth) / "data"
    async with running(data) as (node, gateway), Control(data, partial(freeze, node), node.recover, no_keys):
        await send(gateway, "t", [now() + HOUR])
        assert (data / SOCKET).stat().st_mode & 0o077 == 0

        def ask() -> None:
            for number in range(3):
                with server_snapshot(data) as path:
                    assert path is not None and snapshots(data) == [path.name]
                    with Backups(tmp_path / "into") as backups:
                        backups.make(read_info(data), path, NOW + number, nothing)
                    with pytest.raises(Unavailable, match="another backup"), server_snapshot(data):
                        pass
                assert snapshots(data) == []

        await asyncio.to_thread(ask)
    assert not (data / SOCKET).exists()
    with server_snapshot(data) as path:
        assert path is None


async def test_whoever_dies_leaves_nothing_behind(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running(data) as (node, _), Control(data, partial(freeze, node), node.recover, no_keys):
        for asks in (True, False):
            reader, writer = await asyncio.open_unix_connection(str(data / SOCKET))
            if asks:
                writer.write(b'{"backup": 1}\n')
                assert b"snapshots/backup-" in await reader.readline()
                assert len(snapshots(data)) == 1
            writer.transport.abort()
        while snapshots(data):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_unix_connection(str(data / SOCKET))
        writer.write(b'{"restore": 7}\n')
        assert b"duemq of its version" in await reader.readline()
        writer.close()


async def test_a_server_that_ends_takes_back_what_it_gave(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with AsyncExitStack() as stack:
        node, _ = await stack.enter_async_context(running(data))
        control = await stack.enter_async_context(Control(data, partial(freeze, node), node.recover, no_keys))
        reader, writer = await asyncio.open_unix_connection(str(data / SOCKET))
        writer.write(b'{"backup": 1}\n')
        await reader.readline()
        await control.__aexit__()
        assert snapshots(data) == [] and not (data / SOCKET).exists()
        assert await reader.read() == b""
        writer.close()


async def test_a_node_that_refuses_says_why_by_the_socket(tmp_path: Path) -> None:
    data = tmp_path / "data"

    def ask() -> None:
        with pytest.raises(Unavailable, match="on fire"), server_snapshot(data):
            pass

    async with running(data) as (node, _), Control(data, partial(freeze, node), node.recover, no_keys):
        node.why_not_ready = "the disk is on fire"
        await asyncio.to_thread(ask)
        assert snapshots(data) == []


async def test_a_disk_without_sockets_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path, mode: int) -> None:
        raise OSError(95, "Operation not supported")

    data = tmp_path / "data"
    async with running(data) as (node, _):
        monkeypatch.setattr(Path, "chmod", refuse)
        async with Control(data, partial(freeze, node), node.recover, no_keys):
            assert "not possible while this runs" in caplog.text
        monkeypatch.undo()
    assert (data / SOCKET).exists()  # as one that was killed leaves it
    with server_snapshot(data) as path:
        assert path is None

    def ask() -> None:
        with server_snapshot(data) as path:
            assert path is not None

    async with running(data) as (node, _), Control(data, partial(freeze, node), node.recover, no_keys):
        await asyncio.to_thread(ask)
