"""A node in this process to be backed up, and what its folder says when it is at rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry

from duemq.bus.base import Bus
from duemq.bus.embedded.bus import EmbeddedBus
from duemq.delay.node import Node, NodeOptions
from duemq.delay.node_backend import NodeBackend
from duemq.delay.recovery.verify import verify
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.election.single import SingleElection
from duemq.model.messages.message import Draft
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.storage.backup.backup import Backup, check
from duemq.storage.backup.backups import Backups, NewBackup
from duemq.storage.data_folder import Folder, read_info
from duemq.storage.imports.policy import ImportPolicy
from duemq.storage.rocksdb import Memory
from tests.support.patience import WITHIN_S

NOW = 1_795_255_200_000
DELAY_FILE = TieringPolicy(rows=20, windows=1, quiet_ms=0)


def now() -> int:
    return time.time_ns() // 1_000_000


def nothing(done: int, total: int) -> None:
    """Progress that is not shown."""


@asynccontextmanager
async def running(
    path: Path,
    shards: int = 1,
    open_bus: Callable[[], Awaitable[Bus]] | None = None,
    import_commands: Path | None = None,
) -> AsyncIterator[tuple[Node, CommandGateway]]:
    """A node that seals far windows of 20 messages, and flushes only on request; on a new log if none is given.

    `imports`: folder it may import files from.
    """

    async def own() -> Bus:
        return await EmbeddedBus.open(path / "bus")

    folder = Folder.open(path, shards)
    importing = ImportPolicy(() if import_commands is None else (import_commands,))
    options = NodeOptions(delay_files=DELAY_FILE, flush_interval_s=3600, importing=importing)
    node = Node(folder, open_bus or own, SingleElection(shards), options, CollectorRegistry(), now)
    stop = asyncio.Event()
    work = asyncio.create_task(node.run(stop))
    try:
        await node.ready.wait()
        yield node, CommandGateway(NodeBackend(node))
    finally:
        stop.set()
        await work
        folder.close()


async def send(gateway: CommandGateway, topic: str, dues: Sequence[int]) -> list[str]:
    """The ids of accepted messages, due then (ms)."""
    receipts = await gateway.send([Draft(topic, b"%d" % due, due) for due in dues])
    return [receipt.id for receipt in receipts if isinstance(receipt, Receipt)]


async def delivered(node: Node, topic: str, count: int) -> None:
    """Wait until a topic has this many records."""
    grown = node.bus.subscribe(topic)
    try:
        while await node.bus.end_offset(topic, 0) < count:
            assert await grown.wait(WITHIN_S), "not delivered in time"
    finally:
        grown.close()


def wrong(path: Path) -> list[str]:
    """What `duemq verify` finds wrong with a folder at rest."""

    async def run() -> list[str]:
        folder = Folder.open(path)
        bus = await EmbeddedBus.open(path / "bus")
        try:
            checks = await verify(folder, bus, Memory(8 << 20, 8 << 20), lambda what, rows: None)
            return [f"{check.what}: {check.detail}" for check in checks if not check.good]
        finally:
            await bus.close()
            folder.close()

    return asyncio.run(run())


def back_up(data: Path, into: Path, at: int = NOW) -> NewBackup:
    """Of a folder at rest."""
    with Backups(into) as backups:
        return backups.make(read_info(data), data, at, nothing)


def intact(path: Path) -> Backup:
    """A backup, every file of which is unchanged."""
    backup, damage = check(path, nothing)
    assert damage == []
    assert files(path) == {"backup.json", *(file.name for file in backup.files)}
    return backup


def files(path: Path) -> set[str]:
    """Their names below a folder."""
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


class Crash(BaseException):
    pass


class CrashAt:
    """A fault that fails with the step of this number, and remembers all steps."""

    def __init__(self, number: int, error: BaseException | None = None) -> None:
        self.steps: list[str] = []
        self._number, self._error = number, error or Crash()

    def __call__(self, step: str) -> None:
        self.steps.append(step)
        if len(self.steps) == self._number + 1:
            raise self._error


def flip(path: Path, at: int | None = None) -> None:
    """Change one bit of a file, at this byte or in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)
